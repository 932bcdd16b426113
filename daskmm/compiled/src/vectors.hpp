// Vectors that fill a register, by the extensions of GCC and Clang. Everything lies in an anonymous
// namespace: each instruction set has its own copy, and the linker must not share them.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(DASKMM_EMULATED_AVX512)  // by a header of the tests
#define REGISTER_BYTES 64
#define HAVE_AVX512 1
#elif defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define REGISTER_BYTES 64
#define HAVE_AVX512 1
#elif defined(__AVX2__)
#define REGISTER_BYTES 32
#else
#define REGISTER_BYTES 16
#endif
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define UNROLLED _Pragma("GCC unroll 8")

namespace {

using Index = ptrdiff_t;  // `long` has 32 bits on Windows
constexpr double INFINITE = __builtin_inf();

template <class T, int BYTES> struct Vectors {
  typedef T Type __attribute__((vector_size(BYTES)));
};
template <class T, int N> using VectorOf = typename Vectors<T, N* int(sizeof(T))>::Type;

// A floating type, and the integers of its size.
template <class T> struct Number;
template <> struct Number<float> {
  using Signed = int32_t;
  using Unsigned = uint32_t;
  static constexpr int mantissa = 23;
};
template <> struct Number<double> {
  using Signed = int64_t;
  using Unsigned = uint64_t;
  static constexpr int mantissa = 52;
};
template <class T> constexpr int LENGTH = REGISTER_BYTES / int(sizeof(T));
template <class T> using Vector = VectorOf<T, LENGTH<T>>;
template <class T> using Flags = VectorOf<typename Number<T>::Signed, LENGTH<T>>;  // −1: true
template <class T> using Bits = VectorOf<typename Number<T>::Unsigned, LENGTH<T>>;

template <class T> INLINE Vector<T> load(const T* from) {
  Vector<T> x;
  __builtin_memcpy(&x, from, REGISTER_BYTES);
  return x;
}
template <class T> INLINE void store(T* to, Vector<T> x) { __builtin_memcpy(to, &x, REGISTER_BYTES); }
template <class T> INLINE Vector<T> everywhere(T x) { return x - Vector<T>{}; }
template <class T> INLINE Vector<T> lane_numbers() {
  Vector<T> x;
  for (int lane = 0; lane < LENGTH<T>; lane++) x[lane] = T(lane);
  return x;
}
// Call `f` with the two halves of a vector.
template <class T, int N, class F> INLINE auto halved(VectorOf<T, N> x, F f) {
  if constexpr (N == 16)
    return f(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
             __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
  else if constexpr (N == 8)
    return f(__builtin_shufflevector(x, x, 0, 1, 2, 3), __builtin_shufflevector(x, x, 4, 5, 6, 7));
  else return f(__builtin_shufflevector(x, x, 0, 1), __builtin_shufflevector(x, x, 2, 3));
}
// Sums and maxima of halves: the order is fixed, so that all compilers give the same bits.
template <class T, int N = LENGTH<T>> INLINE T sum_of(VectorOf<T, N> x) {
  if constexpr (N == 2) return x[0] + x[1];
  else return sum_of<T, N / 2>(halved<T, N>(x, [](auto a, auto b) { return a + b; }));
}
template <class T, int N = LENGTH<T>> INLINE T largest_of(VectorOf<T, N> x) {
  if constexpr (N == 2) return x[0] > x[1] ? x[0] : x[1];
  else return largest_of<T, N / 2>(halved<T, N>(x, [](auto a, auto b) { return a > b ? a : b; }));
}
// Σ f(x) over vectors of n numbers, in a fixed order, with four sums that do not wait for another.
template <class F> INLINE double sum_over(const double* numbers, Index n, F f) {
  constexpr int L = LENGTH<double>;
  Vector<double> sums[4] = {};
  Index i = 0;
  for (; i + 4 * L <= n; i += 4 * L)
    for (int v = 0; v < 4; v++) sums[v] += f(load(numbers + i + v * L));
  for (; i + L <= n; i += L) sums[0] += f(load(numbers + i));
  double total = sum_of<double>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; i++) total += f(everywhere(numbers[i]))[0];
  return total;
}
template <class T> INLINE Index count(Flags<T> flags) {
  Index total = 0;
  for (int lane = 0; lane < LENGTH<T>; lane++) total -= flags[lane];
  return total;
}
template <class T> INLINE Flags<T> first_lanes(int n) {
  Flags<T> flags;
  for (int lane = 0; lane < LENGTH<T>; lane++) flags[lane] = lane < n ? -1 : 0;
  return flags;
}

// Call `body(i, n_lanes)` for i = 0, LENGTH, ... below n. All lanes count but in the last call;
// the arrays have room for whole vectors.
template <class T, class Body> INLINE void for_vectors(Index n, Body body) {
  Index i = 0;
  for (; i + LENGTH<T> <= n; i += LENGTH<T>) body(i, LENGTH<T>);
  if (i < n) body(i, int(n - i));
}
// Clear the flags of lanes that do not count.
template <class T> INLINE Flags<T> counted(Flags<T> flags, int n_lanes) {
  return n_lanes < LENGTH<T> ? flags & first_lanes<T>(n_lanes) : flags;
}

// Arrays of one call, filled with zeros and aligned to cache lines. `place` is called twice with
// the same arrays: to add up their sizes, and to set them.
class Memory {
 public:
  template <class Place> bool allocate(Place place) {
    place(*this);
#if !DASKMM_SEPARATE_ARRAYS
    start_ = (char*)calloc(1, used_ + LINE);
    next_ = (char*)(((uintptr_t)start_ + LINE - 1) & ~uintptr_t(LINE - 1));
    if (!start_) return false;
#endif
    placing_ = true;
    place(*this);
    return !failed_;
  }
  // Arrays of n numbers each.
  template <class... T> void operator()(Index n, T*&... arrays) { (place_one(n, arrays), ...); }
  ~Memory() {
#if DASKMM_SEPARATE_ARRAYS
    for (int i = 0; i < n_separate_; i++) free(separate_[i]);
#else
    free(start_);
#endif
  }

 private:
  static constexpr size_t LINE = 64;

  template <class T> void place_one(Index n, T*& array) {
    const size_t size = (size_t(n) * sizeof(T) + 2 * LINE - 1) / LINE * LINE;
    if (!placing_) {
      used_ += size;
      return;
    }
#if DASKMM_SEPARATE_ARRAYS  // sanitizers see what reaches beyond an array
    start_ = (char*)calloc(1, n ? size_t(n) * sizeof(T) : 1);
    failed_ |= !start_;
    if (start_ && n_separate_ < MOST) separate_[n_separate_++] = start_;
    array = (T*)start_;
#else
    array = (T*)next_;
    next_ += size;
#endif
  }

  char *start_ = nullptr, *next_ = nullptr;
  size_t used_ = 0;
  bool placing_ = false, failed_ = false;
#if DASKMM_SEPARATE_ARRAYS
  static constexpr int MOST = 64;
  char* separate_[MOST];
  int n_separate_ = 0;
#endif
};

}  // namespace

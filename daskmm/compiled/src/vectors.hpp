// Vectors that fill a register, by the extensions of GCC and Clang. Everything lies in an anonymous
// namespace: each instruction set has its own copy, and the linker must not share them.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(DASKMM_EMULATED_AVX512)  // a header of the tests defines this
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
// Combine the halves of a vector until a number remains: in this order, all compilers give the same bits.
template <class T, int N = LENGTH<T>, class F> INLINE T folded(VectorOf<T, N> x, F f) {
  if constexpr (N == 2) return f(x[0], x[1]);
  else if constexpr (N == 4)
    return folded<T, 2>(f(__builtin_shufflevector(x, x, 0, 1), __builtin_shufflevector(x, x, 2, 3)), f);
  else if constexpr (N == 8)
    return folded<T, 4>(
        f(__builtin_shufflevector(x, x, 0, 1, 2, 3), __builtin_shufflevector(x, x, 4, 5, 6, 7)), f);
  else
    return folded<T, 8>(f(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
                          __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15)),
                        f);
}
template <class T> INLINE T sum_of(Vector<T> x) {
  return folded<T>(x, [](auto a, auto b) { return a + b; });
}
template <class T> INLINE T largest_of(Vector<T> x) {
  return folded<T>(x, [](auto a, auto b) { return a > b ? a : b; });
}
// Return Σ f(i, at) over n numbers in a fixed order, with N independent vectors of sums. at(x + i)
// reads a vector. At the end, where less than one vector is left (without SINGLES, less than N
// vectors), it reads single numbers.
template <int N, bool SINGLES = true, class F> INLINE double sum_over(Index n, F f) {
  constexpr int L = LENGTH<double>;
  Vector<double> sums[N] = {};
  const auto wide = [](const double* from) { return load(from); };
  Index i = 0;
  for (; i + N * L <= n; i += N * L)
    for (int v = 0; v < N; v++) sums[v] += f(i + v * L, wide);
  for (; SINGLES && i + L <= n; i += L) sums[0] += f(i, wide);
  Vector<double> all = sums[0] + sums[1];
  if constexpr (N == 4) all += sums[2] + sums[3];
  double total = sum_of<double>(all);
  for (; i < n; i++) total += f(i, [](const double* from) { return *from; });
  return total;
}
// aᵀb
INLINE double dot(const double* a, const double* b, Index n) {
  return sum_over<2, false>(n, [&](Index i, auto at) { return at(a + i) * at(b + i); });
}
INLINE double sum_of_all(const double* x, Index n) {
  return sum_over<4>(n, [&](Index i, auto at) { return at(x + i); });
}
template <class T> INLINE Index count(Flags<T> flags) {
  Index total = 0;
  for (int lane = 0; lane < LENGTH<T>; lane++) total -= flags[lane];
  return total;
}

// Call `body(i, n_lanes)` for i = 0, LENGTH, ... below n. In the last call only `n_lanes` lanes
// count; the arrays have room for whole vectors.
template <class T, class Body> INLINE void for_vectors(Index n, Body body) {
  Index i = 0;
  for (; i + LENGTH<T> <= n; i += LENGTH<T>) body(i, LENGTH<T>);
  if (i < n) body(i, int(n - i));
}
// Clear the flags of lanes that do not count.
template <class T> INLINE Flags<T> counted(Flags<T> flags, int n_lanes) {
  return n_lanes < LENGTH<T> ? flags & (lane_numbers<T>() < T(n_lanes)) : flags;
}

// A number of vectors that the compiler knows.
template <int N> struct Abreast {
  static constexpr int n = N;
};
// Call `use` with n vectors, or with MOST if n is larger.
template <int MOST, class Use> INLINE void with_vectors(Index n, Use use) {
  if constexpr (MOST == 1) use(Abreast<1>());
  else if (n >= MOST) use(Abreast<MOST>());
  else with_vectors<MOST - 1>(n, use);
}

constexpr Index rounded_up(Index n, Index unit) { return (n + unit - 1) / unit * unit; }
// Some loops take rows as contiguous numbers; the values of each feature are repeated to this many
// numbers, so that loops over few features fill vectors.
constexpr Index repeated_length(Index p) { return (1 + 255 / p) * p; }

}  // namespace

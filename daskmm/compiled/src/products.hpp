// Products of the rows of a tile with all centres, and sums of rows weighted by centre. The factors
// of eight centres and the sums of a panel of rows stay in registers; BLAS copies its matrices
// first, and takes 1.04 to 1.36 times as long at 128 features and 1,000 centres.
#pragma once
#include "entry.hpp"
#include "weights.hpp"

namespace {

constexpr Index CENTERS = 8;                                   // centres per group
template <class T> constexpr Index WIDTH = GROUP * LENGTH<T>;  // rows of a panel
// With 32 registers, eight centres are taken at a time; with 16, four.
#if HAVE_AVX512 || defined(__aarch64__)
constexpr int AT_ONCE = 8;
#else
constexpr int AT_ONCE = 4;
#endif

// Add Σ_q a[c, q] b[q, i] for C lines of `a` and N vectors of i.
template <class T, int C, int N> INLINE void add_products(const T* a, Index a_step, Index a_next, const T* b,
                                                          Index b_step, Index n, Vector<T> (&sums)[C][N]) {
  for (Index q = 0; q < n; q++, b += b_step) {
    Vector<T> x[N];
    UNROLLED for (int v = 0; v < N; v++)
      x[v] = load(b + v * LENGTH<T>);
    UNROLLED for (int c = 0; c < C; c++) {
      const Vector<T> factor = everywhere(a[c * a_step + q * a_next]);
      UNROLLED for (int v = 0; v < N; v++)
        sums[c][v] += factor * x[v];
    }
  }
}
// Write the sums of `add_products`, or add them.
template <class T, int C, int N, bool ADD = false>
INLINE void multiply_panel(const T* a, Index a_step, const T* b, Index b_step, Index n, T* out,
                           Index out_step, Index a_next = 1) {
  Vector<T> sums[C][N];
  UNROLLED for (int c = 0; c < C; c++) UNROLLED
    for (int v = 0; v < N; v++) sums[c][v] = ADD ? load(out + c * out_step + v * LENGTH<T>) : Vector<T>{};
  add_products<T, C, N>(a, a_step, a_next, b, b_step, n, sums);
  UNROLLED for (int c = 0; c < C; c++) UNROLLED
    for (int v = 0; v < N; v++) store(out + c * out_step + v * LENGTH<T>, sums[c][v]);
}
template <class T, int N> INLINE void multiply_centers(const T* a, Index a_step, const T* b, Index b_step,
                                                       Index n, T* out, Index out_step) {
  for (Index c = 0; c < CENTERS; c += AT_ONCE)
    multiply_panel<T, AT_ONCE, N>(a + c * a_step, a_step, b, b_step, n, out + c * out_step, out_step);
}
// Write the products of eight lines of factors with the b rows of panels to d (centre, row). Four
// lines are enough for the last few centres. With ADD the products are added.
template <class T, bool ADD> void panel_products(const T* factors, Index p, const T* panels, Index height,
                                                 Index b, T* d, Index tile, Index n_centers) {
  const Index n_lines = n_centers > 4 ? CENTERS : 4;
  for (Index i = 0; i < b; i += WIDTH<T>)
    for (Index c = 0; c < n_lines; c += AT_ONCE < n_lines ? AT_ONCE : n_lines) {
      const T *lines = factors + c * p, *panel = panels + i * height;
      T* out = d + c * tile + i;
      if (n_lines < AT_ONCE) multiply_panel<T, 4, GROUP, ADD>(lines, p, panel, WIDTH<T>, p, out, tile);
      else multiply_panel<T, AT_ONCE, GROUP, ADD>(lines, p, panel, WIDTH<T>, p, out, tile);
    }
}

// Call `use` for the vectors of features from `at` to `width`, one to three at a time.
template <class T, class Use> INLINE void for_features(Index at, Index width, Use use) {
  while (at < width) {
    const Index left = (width - at) / LENGTH<T>, n = left == 4 ? 2 : left < 3 ? left : 3;
    with_vectors<3>(n, [&](auto abreast) { use(at, abreast); });
    at += n * LENGTH<T>;
  }
}
// Copy z (b, p) to panels of features; `width` is p, rounded up to whole vectors.
template <class T> void pack_features(const T* z, Index p, Index b, T* packed, Index width) {
  for_features<T>(0, width, [&](Index at, auto abreast) {
    for (Index i = 0; i < b; i++)
      for (int v = 0; v < abreast.n; v++, packed += LENGTH<T>)
        store(packed, load(z + i * p + at + v * LENGTH<T>));
  });
}
// Write the sums of b packed rows, weighted by eight lines of d, to `part` (8, width).
template <class T> void panel_sums(const T* d, Index tile, const T* packed, Index b, T* part, Index width) {
  for_features<T>(0, width, [&](Index at, auto abreast) {
    constexpr int N = abreast.n;
    multiply_centers<T, N>(d, tile, packed + at * b, N * LENGTH<T>, b, part + at, width);
  });
}

// Squares are transposed in registers: vectors of eight numbers, or of a register if that is less.
template <class T> constexpr int SIDE = LENGTH<T> < 8 ? LENGTH<T> : 8;
// The place from which lane `lane` is taken when two rows swap their blocks of `apart` numbers: the
// first row keeps its left blocks (UPPER), the second its right ones. Lanes of the second row count
// from n on.
constexpr int swapped_lane(int lane, int apart, int n, bool upper) {
  return upper ? (lane & apart ? lane + n - apart : lane) : (lane & apart ? lane + n : lane + apart);
}
template <int APART, bool UPPER, class V> INLINE V swapped(V x, V y) {
  constexpr int N = sizeof(V) / sizeof(x[0]);
#define LANE(lane) swapped_lane(lane, APART, N, UPPER)
  if constexpr (N == 8)
    return __builtin_shufflevector(x, y, LANE(0), LANE(1), LANE(2), LANE(3), LANE(4), LANE(5), LANE(6),
                                   LANE(7));
  else if constexpr (N == 4) return __builtin_shufflevector(x, y, LANE(0), LANE(1), LANE(2), LANE(3));
  else return __builtin_shufflevector(x, y, LANE(0), LANE(1));
#undef LANE
}
template <int APART, int N, class V> INLINE void swap_blocks(V* rows) {
  if constexpr (APART > 0) {
    UNROLLED for (int q = 0; q < N; q++)
      if (!(q & APART)) {
        const V x = rows[q], y = rows[q + APART];
        rows[q] = swapped<APART, true>(x, y);
        rows[q + APART] = swapped<APART, false>(x, y);
      }
    swap_blocks<APART / 2, N>(rows);
  }
}
// Write z (b, p) to panels of rows, each (height, WIDTH); `height` is p, rounded up to whole
// squares. Squares read up to SIDE rows beyond the last.
template <class T> void transpose(const T* z, Index b, Index p, T* panels, Index height) {
  constexpr int N = SIDE<T>;
  using V = VectorOf<T, N>;
  for (Index i = 0; i < b; i += N) {
    T* out = panels + i / WIDTH<T> * height * WIDTH<T> + i % WIDTH<T>;
    for (Index f = 0; f < p; f += N) {
      V rows[N];
      UNROLLED for (int q = 0; q < N; q++)
        __builtin_memcpy(rows + q, z + (i + q) * p + f, sizeof(V));
      swap_blocks<N / 2, N>(rows);
      UNROLLED for (int q = 0; q < N; q++)
        __builtin_memcpy(out + (f + q) * WIDTH<T>, rows + q, sizeof(V));
    }
  }
}
// Write Σ_l w_l z_il² of the rows of panels.
template <class T> void squared_norms(const T* panels, Index b, Index p, Index height, const T* w, T* norms) {
  for (Index i = 0; i < b; i += WIDTH<T>) {
    const T* x = panels + i * height;
    Vector<T> sums[GROUP] = {};
    for (Index f = 0; f < p; f++, x += WIDTH<T>) {
      const Vector<T> factor = everywhere(w[f]);
      UNROLLED for (int v = 0; v < GROUP; v++) {
        const Vector<T> value = load(x + v * LENGTH<T>);
        sums[v] += factor * value * value;
      }
    }
    for (int v = 0; v < GROUP; v++) store(norms + i + v * LENGTH<T>, sums[v]);
  }
}

}  // namespace

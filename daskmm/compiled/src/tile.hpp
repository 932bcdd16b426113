// Soft and hard steps share this: a tile of rows, so small that its distances stay in the core's
// cache between the products that make them and those that use them.
#pragma once
#include "products.hpp"
#include "tiles.hpp"
#include "rows.hpp"

namespace {

// Replace NaN by 0; write 1 to `held` where there is a value, else 0.
template <class T, class H> void split_missing(T* __restrict z, H* __restrict held, Index n) {
  for (Index q = 0; q < n; q++) {
    const bool full = z[q] == z[q];
    held[q] = full ? H(1) : H(0);
    z[q] = full ? z[q] : T(0);
  }
}

template <class R, class T> struct Tile : Entry {
  const Step& a;
  const Index p = a.p, k = a.k, rows = a.tile;  // number of rows of a whole tile
  const Index height = rounded_up(p, SIDE<T>);  // height of panels
  const Index n_lines = rounded_up(k, a.rounded ? TILE_SIDE : CENTERS);
  const bool holes = a.observed != nullptr;
  const T *const norms_of_centers = (const T*)a.norms, *const reaches = (const T*)a.reaches;
  T *z, *held;              // rows in the model's coordinates; 1 where a value is not missing
  T *panels, *held_panels;  // the same, transposed
  T* d;                     // (centre, row): products, then distances
  T* norms;                 // norms of the rows, or their terms
  T *factors, *constants;   // these are padded to whole groups of centres
  T* w;

  explicit Tile(const Step& a) : a(a) {}
  void place(Memory& memory) {
    // Squares are read beyond the last row, and vectors beyond the last feature.
    const Index size = (rows + 16) * p + 64;
    memory(size, z), memory(a.rounded ? 0 : rows * height, panels), memory(n_lines * rows, d),
        memory(rows, norms);
    memory(holes ? size : 0, held), memory(holes ? rows * height : 0, held_panels);
    memory(a.rounded ? 0 : n_lines * p, factors), memory(holes ? n_lines * p : 0, constants), memory(p, w);
  }
  void begin() {
    for (Index f = 0; f < p; f++) w[f] = T(a.w[f]);
    if (!a.rounded) memcpy(factors, a.factors, size_t(k) * p * sizeof(T));
    if (holes) memcpy(constants, a.constants, size_t(k) * p * sizeof(T));
  }
  // Transpose b rows, from `start` on, and compute the terms that their distances share.
  void prepare(Index start, Index b) {
    transpose(z, b, p, panels, height);
    if (holes) transpose(held, b, p, held_panels, height);
    if (!a.terms) squared_norms(panels, b, p, height, w, norms);
    else
      for (Index i = 0; i < b; i++) norms[i] = T(a.terms[start + i]);
  }
  // Compute the products with the group of centres that begins with the j-th, if one does.
  INLINE void products(Index j, const R* input, Index b) {
    if (j % CENTERS) return;
    T* out = d + j * rows;
    panel_products<T, false>(factors + j * p, p, panels, height, b, out, rows, k - j);
    if (holes) panel_products<T, true>(constants + j * p, p, held_panels, height, b, out, rows, k - j);
    if (a.edges) separate(j, input, b);
  }
  // Centres at an end of the domain are infinitely far from rows that are not at that end.
  void separate(Index first, const R* input, Index b) {
    for (Index j = first; j < first + CENTERS && j < k; j++)
      for (Index f = 0; f < p; f++) {
        const int edge = a.edges[j * p + f];
        if (!edge) continue;
        for (Index i = 0; i < b; i++) {
          const double x = double(input[i * p + f]);
          if (edge == 1 ? x > a.lower_end : x < a.upper_end) d[j * rows + i] = T(INFINITE);
        }
      }
  }
};

}  // namespace

// Parts of the loops as functions of C, which test_parts.py compiles and calls. Arrays have room for
// whole vectors.
#include "rounded.hpp"

#define PART extern "C" __attribute__((visibility("default")))

template <class T> static RowNumbers<T> numbers_of_rows(T* lines, Index room) {
  return {lines, lines + room, lines + 2 * room, lines + 3 * room, lines + 4 * room};
}

PART Index register_bytes() { return REGISTER_BYTES; }

#define PARTS(T)                                                                                        \
  PART void log2_1p_##T(const T* x, Index n, T* out) {                                                  \
    for_vectors<T>(n, [&](Index i, int) { store(out + i, log2_1p<T>(load(x + i))); });                  \
  }                                                                                                     \
  PART void exp2_##T(const T* x, Index n, T* out) {                                                     \
    for_vectors<T>(n, [&](Index i, int) { store(out + i, exp2<T>(load(x + i))); });                     \
  }                                                                                                     \
  PART Index side_##T() { return SIDE<T>; }                                                             \
  PART Index width_##T() { return WIDTH<T>; }                                                           \
  PART void transpose_##T(const T* z, Index b, Index p, T* panels, Index height) {                      \
    transpose(z, b, p, panels, height);                                                                 \
  }                                                                                                     \
  PART void squared_norms_##T(const T* panels, Index b, Index p, Index height, const T* w, T* out) {    \
    squared_norms(panels, b, p, height, w, out);                                                        \
  }                                                                                                     \
  PART void panel_products_##T(const T* factors, Index p, const T* panels, Index height, Index b, T* d, \
                               Index tile, Index n_centers, Index add) {                                \
    if (add) panel_products<T, true>(factors, p, panels, height, b, d, tile, n_centers);                \
    else panel_products<T, false>(factors, p, panels, height, b, d, tile, n_centers);                   \
  }                                                                                                     \
  PART void pack_features_##T(const T* z, Index p, Index b, T* packed, Index width) {                   \
    pack_features(z, p, b, packed, width);                                                              \
  }                                                                                                     \
  PART void panel_sums_##T(const T* d, Index tile, const T* packed, Index b, T* part, Index width) {    \
    panel_sums(d, tile, packed, b, part, width);                                                        \
  }                                                                                                     \
  PART void weigh_all_##T(T* d, Index tile, Index k, Index b, T* lines, double power, double lowest,    \
                          const T* later, Index n_later) {                                              \
    weigh_all(d, tile, k, b, numbers_of_rows(lines, tile),                                              \
              Weighing<T>{T(power), T(lowest), later, n_later});                                        \
  }                                                                                                     \
  PART Index list_weights_##T(const T* d, Index tile, Index k, Index b, const T* limits, T* lines,      \
                              int64_t* firsts, T* rows, T* excess, Index most) {                        \
    return list_weights(d, tile, k, b, limits, numbers_of_rows(lines, tile),                            \
                        Listed<T>{firsts, rows, excess, nullptr, most});                                \
  }
PARTS(float)
PARTS(double)
PART void exp_negative_double(const double* x, Index n, double* out) {
  for_vectors<double>(n, [&](Index i, int) { store(out + i, exp_negative(load(x + i))); });
}

// Lower bounds of −2 zᵀθ + ‖θ‖² (centre, row) from products of rounded numbers.
PART void rounded_bounds_float(float* z, Index n, const float* factors, Index k, Index p, Index rounded,
                               float* norms, float* bounds) {
  struct {
    float *z, *norms;
  } const rows{z, norms};
  Step a{};
  a.p = p, a.k = k, a.tile = rounded_up(n, WIDTH<float>), a.rounded = rounded, a.factors = factors;
  Rounded by(a);
  float* lines;
  Memory memory;
  memory.allocate([&](Memory& m) { by.place(m), m(rounded_up(k, TILE_SIDE) * a.tile, lines); });
  by.begin(), by.prepare(rows, 0.0f, n), by.products(0, k, lines, n);
  for (Index i = 0; i < n; i++) {
    by.choose(i);
    for (Index j = 0; j < k; j++) {
      // The product of one row and one centre is that of all, up to the order of the sums.
      const float product = lines[j * a.tile + i], both = by.remainders[i] * by.rests[j];
      const bool same = __builtin_fabsf(by.product(j) - product) <= 1e-4f * both * float(p);
      bounds[j * n + i] = same ? product + by.norms[j] - both - by.shift(i) : __builtin_nanf("");
    }
  }
}

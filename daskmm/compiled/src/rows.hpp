// Rows in the model's coordinates and their exact distances, in double precision.
#pragma once
#include "divergences.hpp"

namespace {

// Σ_l w_l (z_l − θ_l)²
INLINE double separation(const double* z, const double* center, const double* w, Index p) {
  return sum_over<2>(p, [&](Index f, auto at) {
    const auto difference = at(z + f) - at(center + f);
    return at(w + f) * difference * difference;
  });
}
// sums += v z
INLINE void add_row(double* sums, double v, const double* z, Index p) {
  constexpr int L = LENGTH<double>;
  Index f = 0;
  for (; f + L <= p; f += L) store(sums + f, load(sums + f) + v * load(z + f));
  for (; f < p; f++) sums[f] += v * z[f];
}
template <class T> INLINE void add_squares(double* squares, double v, const T* z, Index p) {
  for (Index f = 0; f < p; f++) squares[f] += v * double(z[f]) * double(z[f]);
}

// Write (x − mean)/scale of n numbers of whole rows; `rest` is what `mean` has lost by rounding.
template <class R, class T> void shift_and_scale(const R* x, Index n, Index length, const T* mean,
                                                 const T* rest, const T* scale, bool scaled, T* z) {
  for (Index start = 0; start < n; start += length) {
    const Index size = length < n - start ? length : n - start;
    const R* __restrict from = x + start;
    T* __restrict to = z + start;
    for (Index q = 0; q < size; q++) {  // the compiler makes a loop of each case
      T value = T(from[q]) - mean[q];
      if (rest) value -= rest[q];
      to[q] = scaled ? value / scale[q] : value;
    }
  }
}

// Codes of squared Euclidean distances between complete rows. Divergences have codes from 0 on.
enum { ON_SPHERE = -3, WHITENED = -2, PLAIN = -1 };

// Rows of a tile are transformed together if more than 1/MANY of them are needed.
constexpr Index MANY = 4;

// How rows of the input become rows in the model's coordinates, as the structure `A` says.
template <class R, class A> struct Coordinates {
  const A& a;
  const Index p = a.p, length = repeated_length(p);
  double *means = nullptr, *scales = nullptr;  // each is repeated to `length` numbers

  void place(Memory& memory) { memory(length, means, scales); }
  void begin() {
    for (Index q = 0; q < length; q++) means[q] = a.mean[q % p], scales[q] = a.scale[q % p];
  }
  // Write b rows in the model's coordinates; `raw` holds as many rows where they are whitened.
  void transform(const R* rows, Index b, double* raw, double* z) const {
    double* to = a.code == WHITENED ? raw : z;
    shift_and_scale<R, double>(rows, b * p, length, means, nullptr, scales, a.scaled != 0, to);
    if (a.code == WHITENED) whiten(raw, b, z);
    if (a.code == ON_SPHERE)
      for (Index i = 0; i < b; i++) normalize(z + i * p);
  }
  void whiten(const double* raw, Index b, double* z) const {
    for (Index i = 0; i < b; i++) {
      double* row = z + i * p;
      for (Index f = 0; f < p; f++) row[f] = 0.0;
      for (Index l = 0; l < p; l++) add_row(row, raw[i * p + l], a.whitening + l * p, l + 1);
    }
  }
  // Divide a row by √2 times its length; a row of zeros remains, and one that is not finite gets NaN.
  void normalize(double* z) const {
    double square = dot(z, z, p);
    if (!(square > 1e-290 && square < 1e290)) {
      double largest = 0.0;
      for (Index f = 0; f < p; f++) largest = __builtin_fabs(z[f]) > largest ? __builtin_fabs(z[f]) : largest;
      if (largest > 0.0)
        for (Index f = 0; f < p; f++) z[f] /= largest;
      square = dot(z, z, p);
      if (square == 0.0) square = 0.5;
    }
    const double factor = __builtin_sqrt(0.5 / square);
    for (Index f = 0; f < p; f++) z[f] *= factor;
  }
  // The distortion of a row to a centre by its definition, over the values that are not NaN.
  double divergence(const R* row, const double* center, const double* w) const {
    double total = 0.0;
    for (Index f = 0; f < p; f++) {
      const double x = (double(row[f]) - a.mean[f]) / a.scale[f];
      if (x == x) total += w[f] * element(a.code, x, center[f]);
    }
    return total;
  }
};

}  // namespace

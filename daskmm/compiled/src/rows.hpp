// Rows in the model's coordinates and their exact distances, in double precision.
#pragma once
#include "divergences.hpp"

namespace {

// Σ_l w_l (z_l − θ_l)²
INLINE double separation(const double* z, const double* center, const double* w, Index p) {
  constexpr int L = LENGTH<double>;
  Vector<double> sums[2] = {};
  Index f = 0;
  for (; f + 2 * L <= p; f += 2 * L)
    for (int v = 0; v < 2; v++) {
      const Vector<double> difference = load(z + f + v * L) - load(center + f + v * L);
      sums[v] += load(w + f + v * L) * difference * difference;
    }
  for (; f + L <= p; f += L) {
    const Vector<double> difference = load(z + f) - load(center + f);
    sums[0] += load(w + f) * difference * difference;
  }
  double total = sum_of<double>(sums[0] + sums[1]);
  for (; f < p; f++) total += w[f] * (z[f] - center[f]) * (z[f] - center[f]);
  return total;
}
INLINE double dot(const double* a, const double* b, Index n) {
  constexpr int L = LENGTH<double>;
  Vector<double> sums[2] = {};
  Index i = 0;
  for (; i + 2 * L <= n; i += 2 * L)
    for (int v = 0; v < 2; v++) sums[v] += load(a + i + v * L) * load(b + i + v * L);
  double total = sum_of<double>(sums[0] + sums[1]);
  for (; i < n; i++) total += a[i] * b[i];
  return total;
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

// Rows are contiguous numbers here, and what belongs to a feature is repeated to so many numbers,
// so that loops over few features fill vectors.
inline Index repeated_length(Index p) { return (1 + 255 / p) * p; }

// Write (x − mean)/scale of n numbers of whole rows; `rest` is what `mean` has lost by rounding.
template <class R, class T> void shift_and_scale(const R* x, Index n, Index length, const T* mean,
                                                 const T* rest, const T* scale, bool scaled, T* z) {
  for (Index start = 0; start < n; start += length) {
    const Index size = length < n - start ? length : n - start;
    const R* __restrict from = x + start;
    T* __restrict to = z + start;
    if (rest && scaled)
      for (Index q = 0; q < size; q++) to[q] = ((T(from[q]) - mean[q]) - rest[q]) / scale[q];
    else if (rest)
      for (Index q = 0; q < size; q++) to[q] = (T(from[q]) - mean[q]) - rest[q];
    else if (scaled)
      for (Index q = 0; q < size; q++) to[q] = (T(from[q]) - mean[q]) / scale[q];
    else
      for (Index q = 0; q < size; q++) to[q] = T(from[q]) - mean[q];
  }
}

// Codes of squared Euclidean distances between complete rows; those of divergences are not negative.
enum { ON_SPHERE = -3, WHITENED = -2, PLAIN = -1 };

// How rows of the input become rows in the model's coordinates.
template <class R> struct Coordinates {
  Index p, code, length;
  const double *mean, *scale, *whitening;
  bool scaled;
  double *means, *scales;  // repeated

  Coordinates(Index p, Index code, const double* mean, const double* scale, const double* whitening,
              bool scaled)
      : p(p),
        code(code),
        length(repeated_length(p)),
        mean(mean),
        scale(scale),
        whitening(whitening),
        scaled(scaled) {}
  void place(Memory& memory) { memory(length, means, scales); }
  void begin() {
    for (Index q = 0; q < length; q++) means[q] = mean[q % p], scales[q] = scale[q % p];
  }
  // Write b rows in the model's coordinates; `raw` holds as many rows where they are whitened.
  void transform(const R* rows, Index b, double* raw, double* z) const {
    double* to = code == WHITENED ? raw : z;
    shift_and_scale<R, double>(rows, b * p, length, means, nullptr, scales, scaled, to);
    if (code == WHITENED) whiten(raw, b, z);
    if (code == ON_SPHERE)
      for (Index i = 0; i < b; i++) normalize(z + i * p);
  }
  void whiten(const double* raw, Index b, double* z) const {
    for (Index i = 0; i < b; i++) {
      double* row = z + i * p;
      for (Index f = 0; f < p; f++) row[f] = 0.0;
      for (Index l = 0; l < p; l++) add_row(row, raw[i * p + l], whitening + l * p, l + 1);
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
      const double x = (double(row[f]) - mean[f]) / scale[f];
      if (x == x) total += w[f] * element(code, x, center[f]);
    }
    return total;
  }
};

// Insert a row into the list of the largest distances, after equal ones.
inline void insert_farthest(double distance, Index i, double* far, int64_t* rows, Index n) {
  Index place = n - 1;
  for (; place > 0 && far[place - 1] < distance; place--) {
    far[place] = far[place - 1];
    rows[place] = rows[place - 1];
  }
  far[place] = distance;
  rows[place] = i;
}

}  // namespace

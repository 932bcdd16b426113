// Moments of a block, which is read once: each tile is visited for its mean, then for the squared
// deviations from it, while it is in the core's cache.
#pragma once
#include "entry.hpp"

namespace {

// Numbers of a few rows, which loops take together.
struct Lanes {
  double *weights, *means, *sums, *residues, *squares, *low, *high;
};

template <class R> struct MomentSums : Entry {
  const Moments& a;
  const Index p = a.p, length = repeated_length(p);
  Lanes of;

  explicit MomentSums(const Moments& a) : a(a) {}
  void place(Memory& memory) {
    memory(length, of.weights, of.means, of.sums, of.residues, of.squares, of.low, of.high);
  }
  void begin() {
    for (Index q = 0; q < length; q++) of.weights[q] = 1.0, of.low[q] = INFINITE, of.high[q] = -INFINITE;
  }
  void finish() {
    for (Index q = 0; q < length; q++) {
      const Index f = q % p;
      if (of.low[q] < a.lowest[f]) a.lowest[f] = of.low[q];
      if (of.high[q] > a.highest[f]) a.highest[f] = of.high[q];
    }
  }
  // Call `visit(numbers, size)` for the numbers of b rows, `length` at a time; their weights are
  // set before.
  template <class Visit> INLINE void for_numbers(Index start, Index b, Visit visit) {
    const R* x = (const R*)a.rows + start * p;
    for (Index q = 0; q < b * p; q += length) {
      const Index size = length < b * p - q ? length : b * p - q;
      if (a.weights)
        for (Index i = 0; i < size / p; i++)
          for (Index f = 0; f < p; f++) of.weights[i * p + f] = a.weights[start + q / p + i];
      visit(x + q, size);
    }
  }
  // Add the differences from the origin, and widen the range.
  static void visit_first(const R* __restrict x, Index size, const Lanes& of) {
    const double* __restrict v = of.weights, * __restrict means = of.means;
    double* __restrict sums = of.sums, * __restrict low = of.low, * __restrict high = of.high;
    for (Index q = 0; q < size; q++) {
      const double value = double(x[q]);
      const bool held = v[q] > 0.0;
      sums[q] += v[q] * (value - means[q]);
      low[q] = held & (value < low[q]) ? value : low[q];
      high[q] = held & (value > high[q]) ? value : high[q];
    }
  }
  // Add deviations from the mean, and their squares.
  static void visit_again(const R* __restrict x, Index size, const Lanes& of) {
    const double* __restrict v = of.weights, * __restrict means = of.means;
    double* __restrict residues = of.residues, * __restrict squares = of.squares;
    for (Index q = 0; q < size; q++) {
      const double deviation = double(x[q]) - means[q];
      const double weighted = v[q] * deviation;  // a row without weight adds 0
      residues[q] += weighted;
      squares[q] += weighted * deviation;
    }
  }
  double total_of(const double* lanes, Index f) const {
    double total = 0.0;
    for (Index q = f; q < length; q += p) total += lanes[q];
    return total;
  }
  // Merge one feature of a tile; its residue corrects the rounded mean.
  void merge(double weight, Index f, double mean) {
    const double residue = total_of(of.residues, f), square = total_of(of.squares, f);
    const double total = a.totals[1], share = weight / (total + weight);
    mean += residue / weight;
    const double delta = mean - a.mean[f], left = square - residue * (residue / weight);
    // Start from the mean of larger weight: the other may be far away, with a large rounding error.
    a.mean[f] = share <= 0.5 ? a.mean[f] + delta * share : mean - delta * (total / (total + weight));
    a.deviations[f] += left > 0.0 ? left : 0.0;
    a.deviations[f] += delta * delta * (total * share);
  }
  // Add b rows; return whether all their values are finite.
  bool add(Index start, Index b) {
    double weight = double(b), n_positive = double(b);
    if (a.weights) {
      weight = n_positive = 0.0;
      for (Index i = start; i < start + b; i++) weight += a.weights[i], n_positive += a.weights[i] != 0.0;
    }
    for (Index q = 0; q < length; q++) of.sums[q] = 0.0, of.means[q] = a.origin[q % p];
    for_numbers(start, b, [&](const R* x, Index size) { visit_first(x, size, of); });
    for (Index f = 0; f < p; f++) {
      const double total = total_of(of.sums, f);
      // Values that are not finite give NaN even with weight 0.
      if (!__builtin_isfinite(total)) return false;
      if (weight > 0.0)
        for (Index q = f; q < length; q += p) of.means[q] = a.origin[f] + total / weight;
    }
    if (weight == 0.0) return true;
    if (weight > a.totals[1])
      for (Index f = 0; f < p; f++) {
        a.mean[f] = a.totals[1] > 0.0 ? a.mean[f] + (a.origin[f] - of.means[f]) : 0.0;
        a.origin[f] = of.means[f];
      }
    for (Index q = 0; q < length; q++) of.residues[q] = of.squares[q] = 0.0;
    for_numbers(start, b, [&](const R* x, Index size) { visit_again(x, size, of); });
    for (Index f = 0; f < p; f++) merge(weight, f, of.means[f] - a.origin[f]);
    a.totals[0] += n_positive;
    a.totals[1] += weight;
    return true;
  }
};

}  // namespace

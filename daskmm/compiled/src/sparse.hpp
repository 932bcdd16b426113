// Products of sparse rows with dense arrays of few columns. Each stored value is multiplied by all
// columns at once; scipy does not know that they are few and contiguous.
#pragma once
#include "entry.hpp"

namespace {

template <class I> struct SparseRows {
  const Sparse& a;
  const I *const indices = (const I*)a.indices, *const ends = (const I*)a.indptr;

  // Write N vectors of columns of the product of one row.
  template <int N> INLINE void multiply_columns(Index row, Index column) const {
    constexpr int L = LENGTH<double>;
    const double *dense = a.dense + column, *data = a.data;
    const Index end = ends[row + 1], n_columns = a.n_columns;
    Vector<double> sums[N] = {};
    for (Index at = ends[row]; at < end; at++) {
      const double* line = dense + Index(indices[at]) * n_columns;
      const Vector<double> value = everywhere(data[at]);
      UNROLLED for (int v = 0; v < N; v++)
        sums[v] += value * load(line + v * L);
    }
    for (int v = 0; v < N; v++) store(a.out + row * a.n_columns + column + v * L, sums[v]);
  }
  // Write X B; the columns of B fill whole cache lines.
  int products() const {
    constexpr int L = LENGTH<double>;
    for (Index row = 0; row < a.n; row++)
      for (Index column = 0; column < a.n_columns;)
        with_vectors<8>((a.n_columns - column) / L, [&](auto abreast) {
          multiply_columns<abreast.n>(row, column);
          column += abreast.n * L;
        });
    return DONE;
  }
  // Add Xᵀ A; weights of 0 cost little where a row has only one other weight.
  int sums() const {
    for (Index row = 0; row < a.n; row++) {
      const double* weights = a.dense + row * a.n_columns;
      Index n_held = 0, only = 0;
      for (Index column = 0; column < a.n_columns; column++)
        if (weights[column] != 0.0) n_held++, only = column;
      if (n_held == 0) continue;
      for (Index at = ends[row]; at < ends[row + 1]; at++) {
        double* __restrict line = a.out + Index(indices[at]) * a.n_columns;
        const double value = a.data[at];
        if (n_held == 1) line[only] += value * weights[only];
        else
          for (Index column = 0; column < a.n_columns; column++) line[column] += value * weights[column];
      }
    }
    return DONE;
  }
  // Add each row, times its factor, to the line of `out` that its label names.
  int labelled_sums() const {
    for (Index row = 0; row < a.n; row++) {
      double* line = a.out + Index(a.labels[row]) * a.n_columns;
      for (Index at = ends[row]; at < ends[row + 1]; at++) line[indices[at]] += a.data[at] * a.factors[row];
    }
    return DONE;
  }
};

}  // namespace

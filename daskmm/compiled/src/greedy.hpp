// Greedy k-means++ within cells of rows. Each step compares the few rows drawn in one cell with all
// rows of that cell, which is too little work for a call of numpy: its overhead took two thirds of
// the time, and kept the other threads waiting.
#pragma once
#include "partial.hpp"

namespace {

struct CellRows {
  Index first, end;
};

struct GreedyChoice {
  static constexpr Index ABREAST = 4;  // drawn rows that a row is compared with at once

  const Greedy& a;
  const Index p, trials, most;  // `trials` is a multiple of ABREAST
  double *rates, *costs, *reached, *totals;
  float *smallest, *distances;
  int64_t* drawn;

  explicit GreedyChoice(const Greedy& a)
      : a(a), p(a.p), trials((a.n_trials + ABREAST - 1) / ABREAST * ABREAST), most(largest_cell()) {}
  Index largest_cell() const {
    Index found = 0;
    for (Index c = 0; c < a.n_cells; c++)
      found = cell(c).end - cell(c).first > found ? cell(c).end - cell(c).first : found;
    return found;
  }
  void place(Memory& memory) {
    memory(a.n, rates, smallest), memory(a.n_cells, costs), memory(most, reached);
    memory(trials, drawn, totals), memory(trials * most, distances);
  }
  CellRows cell(Index c) const { return {c ? Index(a.ends[c - 1]) : 0, Index(a.ends[c])}; }

  // Draw an index with probability proportional to the rates that `add_up` has seen.
  Index draw(Index n, double uniform) const {
    const double wanted = uniform * reached[n - 1];
    Index low = 0, high = n - 1;
    while (low < high) {
      const Index middle = (low + high) / 2;
      if (reached[middle] > wanted) high = middle;
      else low = middle + 1;
    }
    return low;
  }
  void add_up(const double* some, Index n) {
    double sum = 0.0;
    for (Index i = 0; i < n; i++) reached[i] = sum += some[i];
  }
  float distance(Index i, Index j, float product) const {
    const float sizes = a.norms[i] + a.norms[j], found = sizes - 2.0f * product;
    return found <= float(a.rounding) * sizes ? 0.0f : found;
  }
  // Compare the drawn rows with all rows of a cell; keep the smaller of new and earlier distances.
  void compare(CellRows own, Index n_drawn) {
    for (Index t = 0; t < n_drawn; t++) totals[t] = 0.0;
    for (Index i = own.first; i < own.end; i++)
      for (Index t = 0; t < n_drawn; t += ABREAST) {
        const float* some[ABREAST];
        float products[ABREAST];
        for (Index at = 0; at < ABREAST; at++) some[at] = a.rows + drawn[t + at] * p;
        dots<float, ABREAST>(some, a.rows + i * p, p, products);
        for (Index at = 0; at < ABREAST; at++) {
          const float found = distance(i, Index(drawn[t + at]), products[at]);
          const float least = found < smallest[i] ? found : smallest[i];
          distances[(t + at) * most + i - own.first] = least;
          totals[t + at] += a.weights[i] * double(least);
        }
      }
  }
  // Make a drawn row a centre.
  void take(Index c, CellRows own, Index t) {
    costs[c] = 0.0;
    for (Index i = own.first; i < own.end; i++) {
      smallest[i] = distances[t * most + i - own.first];
      costs[c] += rates[i] = a.weights[i] * double(smallest[i]);
    }
  }
  // Choose the first row of a cell by weight.
  int64_t begin(Index c, double uniform) {
    const CellRows own = cell(c);
    add_up(a.weights + own.first, own.end - own.first);
    for (Index t = 0; t < ABREAST; t++) drawn[t] = own.first + draw(own.end - own.first, uniform);
    for (Index i = own.first; i < own.end; i++) smallest[i] = float(INFINITE);
    compare(own, ABREAST);
    take(c, own, 0);
    return drawn[0];
  }
  // Draw a cell by its cost, and some of its rows by their costs; return the best of these rows, or
  // −1 if no cost is left.
  int64_t next(const double* uniforms) {
    double total = 0.0;
    for (Index c = 0; c < a.n_cells; c++) total += costs[c];
    if (!(total > 0.0)) return -1;
    Index c = 0;
    double left = uniforms[0] * total;
    for (; c < a.n_cells - 1 && left >= costs[c]; c++) left -= costs[c];
    while (!(costs[c] > 0.0)) c = c ? c - 1 : a.n_cells - 1;  // rounding went beyond the last cost
    const CellRows own = cell(c);
    add_up(rates + own.first, own.end - own.first);
    for (Index t = 0; t < trials; t++)
      drawn[t] = own.first + draw(own.end - own.first, uniforms[1 + (t < a.n_trials ? t : 0)]);
    compare(own, trials);
    Index best = 0;
    for (Index t = 1; t < a.n_trials; t++)
      if (totals[t] < totals[best]) best = t;
    take(c, own, best);
    return drawn[best];
  }
};

inline int greedy_choice(const Greedy& a) {
  GreedyChoice choice(a);
  Memory memory;
  if (!memory.allocate([&](Memory& m) { choice.place(m); })) return OUT_OF_MEMORY;
  for (Index t = 0; t < a.k; t++) {
    const double* uniforms = a.uniforms + t * (a.n_trials + 1);
    a.chosen[t] = t < a.n_cells ? choice.begin(t, uniforms[1]) : choice.next(uniforms);
  }
  return DONE;
}

}  // namespace

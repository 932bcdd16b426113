// Bounds of distances between steps, which exclude most centres (Hamerly 2010; Ryšavý & Hamerly
// 2016; Newling & Fleuret 2016; see bounds.py).
#pragma once
#include "rows.hpp"

namespace {

// The last ball around a centre holds all: its radius is a number, as ∞ − ∞ is NaN.
constexpr double NO_END = 1e300;
// Halvings, on the scale of logarithms, of the interval in which the radius of the list is sought:
// from the nearest centre, or this share of the mean, to the mean of the squared distances.
constexpr int HALVINGS = 12;
constexpr double NEAREST = 1e-12;

// ---- What moved around each centre -------------------------------------------------------------

inline Index count_below(const double* row, Index n, double limit) {
  return Index(sum_over(
      row, n, [&](Vector<double> x) { return x < everywhere(limit) ? everywhere(1.0) : Vector<double>{}; }));
}
inline double finite_mean(const double* row, Index n) {
  const Vector<double> end = everywhere(INFINITE);
  return sum_over(row, n, [&](Vector<double> x) { return x < end ? x : Vector<double>{}; }) / double(n);
}
// Turn products into squared distances, that to itself into ∞; return the least.
inline double complete_squares(double* row, const double* norms, Index n, Index own) {
  const double norm = norms[own];
  for (Index j = 0; j < n; j++) {
    const double square = row[j] + norms[j] + norm;
    row[j] = square > 0.0 ? square : 0.0;  // rounding makes negative numbers of coincident centres
  }
  row[own] = INFINITE;
  Vector<double> least = everywhere(INFINITE);
  Index j = 0;
  for (; j + LENGTH<double> <= n; j += LENGTH<double>) {
    const Vector<double> x = load(row + j);
    least = x < least ? x : least;
  }
  double found = -largest_of<double>(-least);
  for (; j < n; j++) found = row[j] < found ? row[j] : found;
  return found;
}
// List the nearest centres, the nearest first, given the squared distances of all.
inline void list_nearest(const double* row, double least, const Moving& a, Index at) {
  const Index size = a.n_listed;
  int32_t* around = a.around + at * size;
  double* apart = a.apart + at * (size + 1);
  double high = finite_mean(row, a.k), low = least > NEAREST * high ? least : NEAREST * high;
  if (count_below(row, a.k, low) > size) low = high = 0.0;  // coincident centres
  for (int halving = 0; halving < HALVINGS; halving++) {
    const double middle = __builtin_sqrt(low * high);
    (count_below(row, a.k, middle) > size ? high : low) = middle;
  }
  Index n = 0;
  for (Index j = 0; j < a.k; j++) {
    if (!(row[j] < low)) continue;
    Index place = n++;
    for (; place > 0 && apart[place - 1] > row[j]; place--) {
      apart[place] = apart[place - 1];
      around[place] = around[place - 1];
    }
    apart[place] = row[j];
    around[place] = int32_t(a.order[j]);
  }
  for (Index t = n; t < size; t++) around[t] = -1;
  for (Index t = n; t <= size; t++) apart[t] = low;
  for (Index t = 0; t <= size; t++) apart[t] = __builtin_sqrt(apart[t]);
}
inline int fill_moves(const Moving& a) {
  const Index last = a.n_shells - 1;
  for (Index i = 0; i < a.n; i++) {
    double* row = a.squares + i * a.k;
    const Index own = a.first + i, at = a.order[own];
    double *reach = a.reach + at * a.n_shells, *farthest = a.farthest + at * a.n_shells;
    const double least = complete_squares(row, a.norms, a.k, own);
    double square = least;
    for (Index shell = 0; shell < last; shell++, square *= 2.0) reach[shell] = __builtin_sqrt(square);
    reach[last] = NO_END;
    // The largest ball first: what is within a smaller one comes later in the order. The smallest
    // one ends at the nearest centre, so no other lies in it.
    farthest[0] = 0.0;
    Index j = 0;
    for (Index shell = last; shell > 0; shell--) {
      const double radius = reach[shell] * reach[shell];
      while (j < a.k && a.ways[j] > 0.0 && !(row[j] < radius)) j++;
      farthest[shell] = j < a.k ? a.ways[j] : 0.0;
    }
    a.own_ways[at] = a.ways[own];
    list_nearest(row, least, a, at);
  }
  return DONE;
}

// ---- Rows ----------------------------------------------------------------------------------------

struct Nearest {
  Index label;    // −1 where two centres are as near up to rounding
  double square;  // squared distance to it
  double bound;   // of the distance to any other centre
};

template <class R> struct BoundTest {
  const Bounds& a;
  const Index p;
  Coordinates<R> coordinates;
  double *exact, *ones, *apart;

  explicit BoundTest(const Bounds& a)
      : a(a), p(a.p), coordinates(a.p, a.code, a.mean, a.scale, nullptr, a.scaled != 0) {}
  bool allocate(Memory& memory, Index rows) {
    if (!memory.allocate(
            [&](Memory& m) { coordinates.place(m), m(rows * p, exact), m(p, ones), m(a.k, apart); }))
      return false;
    coordinates.begin();
    for (Index f = 0; f < p; f++) ones[f] = 1.0;
    return true;
  }
  double squared(const double* z, Index j) const { return separation(z, a.centers + j * p, ones, p); }

  // Lower the bound of the distance to other centres by what moved: within a ball around the row's
  // centre, and beyond it.
  INLINE double lowered(double lower, double distance, Index own) const {
    const double *reach = a.reach + own * a.n_shells, *farthest = a.farthest + own * a.n_shells;
    Vector<double> bound = everywhere(-NO_END);
    for (Index shell = 0; shell < a.n_shells; shell += LENGTH<double>) {  // whole vectors
      const Vector<double> inside = lower - load(farthest + shell), beyond = load(reach + shell) - distance;
      const Vector<double> least = inside < beyond ? inside : beyond;
      bound = least > bound ? least : bound;
    }
    return largest_of<double>(bound);
  }
  // Compare a row with the centres listed around its own, which exclude all others.
  Nearest search_around(const double* z, double square, Index own) const {
    const int32_t* around = a.around + own * a.n_listed;
    const double *listed = a.apart + own * (a.n_listed + 1), distance = __builtin_sqrt(square);
    double least = square, second = INFINITE, limit = INFINITE;
    Index nearest = own, t = 0;
    for (; t < a.n_listed && around[t] >= 0 && listed[t] < limit; t++) {
      const double found = squared(z, around[t]);
      if (!(found < second)) continue;
      if (found < least) second = least, least = found, nearest = around[t];
      else second = found;
      // Centres as far from the row's as this are not among the two nearest.
      limit = (1.0 + a.doubt) * (distance + __builtin_sqrt(second));
    }
    if (!(least < (1.0 - a.doubt) * second)) return {-1, least, 0.0};
    const double other = __builtin_sqrt(second), beyond = listed[t] - (1.0 + a.doubt) * distance;
    return {nearest, least, (1.0 - a.doubt) * (other < beyond ? other : beyond)};
  }
  // Bring one row up to date from its exact distance.
  void test(Index i, const double* z) {
    const Index own = a.labels[i];
    const double square = squared(z, own);
    double distance = __builtin_sqrt(square), bound = lowered(a.lower[i], distance, own);
    bool found = distance < (1.0 - a.doubt) * bound;
    if (!found && 2.0 * distance < (1.0 - 4.0 * a.doubt) * a.apart[own * (a.n_listed + 1) + a.n_listed]) {
      const Nearest nearest = search_around(z, square, own);
      bound = nearest.bound;
      if (nearest.label >= 0) {
        found = true;
        a.labels[i] = int32_t(nearest.label);
        distance = __builtin_sqrt(nearest.square);
      }
    }
    a.lower[i] = bound;
    a.upper[i] = (1.0 + a.doubt) * distance;
    a.doubtful[i] = !found;
  }
  // Compare a row with all centres; return whether it is finite.
  bool scan(Index i, const double* z) {
    double least = INFINITE, second = INFINITE;
    Index nearest = 0;
    for (Index j = 0; j < a.k; j++) {
      const double found = apart[j] = squared(z, j);
      if (found < least) second = least, least = found, nearest = j;
      else if (found < second) second = found;
    }
    if (!__builtin_isfinite(least)) return false;
    if (!(least < (1.0 - a.doubt) * second)) second = least;
    a.labels[i] = int32_t(nearest);
    a.upper[i] = least;
    a.lower[i] = second;
    return true;
  }
};

// Bring labels and bounds up to date; mark the rows that have to be compared with all centres.
template <class R> int update_bounds(const Bounds& a) {
  constexpr Index TILE = 256, MANY = 4;  // rows are transformed together if 1/MANY are in doubt
  const Index p = a.p;
  BoundTest<R> test(a);
  Memory memory;
  if (!test.allocate(memory, TILE)) return OUT_OF_MEMORY;
  for (Index start = 0; start < a.n; start += TILE) {
    const Index b = TILE < a.n - start ? TILE : a.n - start;
    const R* rows = (const R*)a.rows + start * p;
    Index n_doubtful = 0;
    for (Index i = start; i < start + b; i++) {
      a.upper[i] += a.ways[a.labels[i]];
      const double bound = test.lowered(a.lower[i], a.upper[i], a.labels[i]);
      a.doubtful[i] = !(a.upper[i] < (1.0 - a.doubt) * bound);
      n_doubtful += a.doubtful[i];
      if (!a.doubtful[i]) a.lower[i] = bound;
    }
    if (n_doubtful == 0) continue;
    const bool together = n_doubtful * MANY >= b;
    if (together) test.coordinates.transform(rows, b, nullptr, test.exact);
    for (Index i = 0; i < b; i++) {
      if (!a.doubtful[start + i]) continue;
      double* z = test.exact + i * p;
      if (!together) test.coordinates.transform(rows + i * p, 1, nullptr, z);
      test.test(start + i, z);
    }
  }
  return DONE;
}

// For few rows, what nearest_centers does for many.
template <class R> int compare_all(const Bounds& a) {
  BoundTest<R> test(a);
  Memory memory;
  if (!test.allocate(memory, 1)) return OUT_OF_MEMORY;
  for (Index i = 0; i < a.n; i++) {
    test.coordinates.transform((const R*)a.rows + i * a.p, 1, nullptr, test.exact);
    if (!test.scan(i, test.exact)) return NOT_FINITE;
  }
  return DONE;
}

}  // namespace

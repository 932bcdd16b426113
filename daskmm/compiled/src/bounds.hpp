// Bounds of distances between steps, which exclude most centres (see bounds.py).
#pragma once
#include "rows.hpp"

namespace {

struct Nearest {
  Index label;    // −1 where two centres are equally near up to rounding
  double square;  // squared distance to that centre
  double bound;   // lower bound of the distance to any other centre
};

constexpr Index BOUND_ROWS = 256;  // rows per tile

// Bring labels and bounds up to date; mark the rows that have to be compared with all centres.
template <class R> struct BoundTest : Entry {
  const Bounds& a;
  const Index p = a.p;
  Coordinates<R, Bounds> coordinates{a};
  double *exact, *ones;

  explicit BoundTest(const Bounds& a) : a(a) {}
  void place(Memory& memory) { coordinates.place(memory), memory(BOUND_ROWS * p, exact), memory(p, ones); }
  void begin() {
    coordinates.begin();
    for (Index f = 0; f < p; f++) ones[f] = 1.0;
  }
  double squared(const double* z, Index j) const { return separation(z, a.centers + j * p, ones, p); }

  // Return a lower bound of the distance to other centres after a move. For each ball around the
  // row's centre, centres inside have moved by at most `farthest`, and those beyond are too far
  // away.
  INLINE double lowered(double lower, double distance, Index own) const {
    const double *reach = a.reach + own * a.n_shells, *farthest = a.farthest + own * a.n_shells;
    Vector<double> bound = everywhere(-INFINITE);
    for (Index shell = 0; shell < a.n_shells; shell += LENGTH<double>) {  // there are whole vectors of shells
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
    for (; t < a.n_listed && listed[t] < limit; t++) {
      const double found = squared(z, around[t]);
      if (!(found < second)) continue;
      if (found < least) second = least, least = found, nearest = around[t];
      else second = found;
      // Centres at least this far from the row's centre are not among the two nearest.
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
  bool add(Index start, Index b) {
    const R* rows = (const R*)a.rows + start * p;
    Index n_doubtful = 0;
    for (Index i = start; i < start + b; i++) {
      a.upper[i] += a.ways[a.labels[i]];
      const double bound = lowered(a.lower[i], a.upper[i], a.labels[i]);
      a.doubtful[i] = !(a.upper[i] < (1.0 - a.doubt) * bound);
      n_doubtful += a.doubtful[i];
      if (!a.doubtful[i]) a.lower[i] = bound;
    }
    if (n_doubtful == 0) return true;
    const bool together = n_doubtful * MANY > b;
    if (together) coordinates.transform(rows, b, nullptr, exact);
    for (Index i = 0; i < b; i++) {
      if (!a.doubtful[start + i]) continue;
      double* z = exact + i * p;
      if (!together) coordinates.transform(rows + i * p, 1, nullptr, z);
      test(start + i, z);
    }
    return true;
  }
};

}  // namespace

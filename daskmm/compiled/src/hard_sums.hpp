// Hard steps and nearest centres. Products find the nearest centres up to rounding; near ties are
// decided from the differences in double precision.
#pragma once
#include "partial.hpp"

namespace {

// The two smallest −2 zᵀθ + ‖θ‖² of each row, and the nearest centre, in the type of the distances.
template <class R, class T> struct Search : Tile<R, T> {
  using Base = Tile<R, T>;
  static constexpr Index PIECE = 1 << 11;  // numbers in double precision that fit into the first cache
  using Base::a, Base::p, Base::k, Base::rows, Base::d, Base::norms, Base::norms_of_centers;
  Coordinates<R, Step> coordinates{a};
  Leading<T> leading{a};
  Nearby<T> nearby{a};
  T *smallest, *second, *nearest;
  double *exact, *raw;

  using Base::Base;
  void place(Memory& memory) {
    Base::place(memory), coordinates.place(memory), leading.place(memory), nearby.place(memory);
    memory(rows, smallest, second, nearest);
    memory(rows * p, exact), memory(a.code == WHITENED ? rows * p : 0, raw);
  }
  void begin() { Base::begin(), coordinates.begin(), leading.begin(); }

  // Read rows piece by piece, and call `look` with the first row and the number of rows of each.
  template <class Look> INLINE void read(const R* input, Index b, Look look) {
    const Index most = 1 + PIECE / p;
    for (Index i = 0; i < b; i += most) {
      const Index n = most < b - i ? most : b - i, size = n * p;
      double* to = exact + i * p;
      coordinates.transform(input + i * p, n, a.code == WHITENED ? raw + i * p : nullptr, to);
      for (Index q = 0; q < size; q++) Base::z[i * p + q] = T(to[q]);
      look(i, n);
    }
  }
  void find(Index start, const R* input, Index b) {
    if (!leading.rounded) Base::prepare(start, b);
    for (Index i = 0; i < rows; i++) smallest[i] = second[i] = T(INFINITE), nearest[i] = 0;
    nearby.begin();
    if (leading.active) return leading.find(*this, a.guesses ? a.guesses + start : nullptr, b);
    for (Index j = 0; j < k; j += 2) {
      Base::products(j, input, b);
      compare_pair<T, true>(d + j * rows, rows, j, norms_of_centers + j, smallest, second, nearest, b);
      if (!nearby.size) continue;
      for (Index t = j; t < j + 2; t++) nearby.insert_line(t, d + t * rows, norms_of_centers[t], b);
    }
  }
  // Return whether products determine the nearest centre and an accurate distance. Centres at a
  // distance d from a row have norms of at most 2 ‖z‖² + 2 d; `slack` is added where this may not
  // hold. Distances above `worst` may be listed, so they must be exact.
  template <class V> INLINE auto settled(V m, V n, V norm, T slack, T cancelled, T worst) const {
    const V distance = m + norm, span = T(3) * norm + T(2) * distance + slack;
    return (n - m > T(a.rounding) * span) & (distance >= cancelled * span) & (distance <= worst);
  }
  // Call `redo(i, tied)` for the rows that are not settled; `tied` says that the nearest centre is
  // in doubt.
  template <class Redo> INLINE void for_doubtful(Index b, T slack, T cancelled, T worst, Redo redo) {
    for_vectors<T>(b, [&](Index i, int n_lanes) {
      const Vector<T> m = load(smallest + i), n = load(second + i), norm = load(norms + i);
      const Flags<T> doubtful = counted<T>(~settled(m, n, norm, slack, cancelled, worst), n_lanes);
      if (count<T>(doubtful) == 0) return;
      for (int lane = 0; lane < n_lanes; lane++) {
        if (!doubtful[lane]) continue;
        const Index at = i + lane;
        const T span = T(3) * norms[at] + T(2) * (smallest[at] + norms[at]) + slack;
        const T margin = T(a.rounding) * span;
        const bool tied = !(second[at] - smallest[at] > margin);
        redo(at, tied, smallest[at] + margin);
      }
    });
  }
  double exact_distance(const R* input, Index i, Index j) const {
    const double* center = a.centers + j * p;
    if (a.code < 0) return separation(exact + i * p, center, a.w, p);
    return coordinates.divergence(input + i * p, center, a.w);
  }
  // Find the nearest of the centres whose distance by products is not above `limit`.
  T decide(const R* input, Index i, T limit) {
    double least = INFINITE;
    Index found = 0;
    if (leading.active) leading.restore(d, i);
    for (Index j = 0; j < k; j++) {
      if (leading.active ? leading.excludes(d, i, j) : d[j * rows + i] + norms_of_centers[j] > limit)
        continue;
      const double distance = exact_distance(input, i, j);
      if (distance < least) least = distance, found = j;
    }
    return T(found);
  }
};

// Distances above this may be among the farthest: rounding does not decide which rows are listed.
INLINE double listed_from(const Step& a) {
  const double error = a.rounding / a.cancelled, share = error < 1e-5 ? 1e-5 : error;
  return a.n_far ? (1.0 - share) * a.far[a.n_far - 1] : INFINITE;
}
// Insert a row into the list of the farthest, after equal ones, if it is farther than the last.
inline void list_farthest(const Step& a, Index row, double distance) {
  Index place = a.n_far - 1;
  if (place < 0 || !(distance > a.far[place])) return;
  for (; place > 0 && a.far[place - 1] < distance; place--) {
    a.far[place] = a.far[place - 1];
    a.far_rows[place] = a.far_rows[place - 1];
  }
  a.far[place] = distance;
  a.far_rows[place] = a.first_row + row;
}
INLINE void add_totals(const Step& a, const double* v, const double* served, Index b) {
  const double inertia = dot(v, served, b);
  a.totals[0] += inertia;
  a.totals[1] += inertia;
  for (Index i = 0; i < b; i++) a.totals[2] += v[i];
}

template <class R, class T> struct HardSums : Search<R, T> {
  using Base = Search<R, T>;
  using Base::a, Base::p, Base::exact, Base::smallest, Base::nearest, Base::norms, Base::holes;
  double *v, *served, *full;  // `full` is 1 where a value is not missing

  using Base::Base;
  void place(Memory& memory) {
    Base::place(memory), memory(a.tile, v, served), memory(holes ? a.tile * p : 0, full);
  }
  bool add(Index start, Index b) {
    const R* input = (const R*)a.rows + start * p;
    copy_weights(a, start, b, v);
    Base::read(input, b, [](Index, Index) {});
    if (holes) split_missing(exact, full, b * p), split_missing(Base::z, Base::held, b * p);
    Base::find(start, input, b);
    for (Index i = 0; i < b; i++) served[i] = smallest[i] + norms[i];
    Base::for_doubtful(b, T(a.slack), T(a.cancelled), T(listed_from(a)), [&](Index i, bool tied, T limit) {
      if (tied) nearest[i] = Base::decide(input, i, limit);
      served[i] = Base::exact_distance(input, i, Index(nearest[i]));
      if (v[i] > 0.0) list_farthest(a, start + i, served[i]);
    });
    for (Index i = 0; i < b; i++) {
      const Index j = Index(nearest[i]);
      const double* row = exact + i * p;
      if (a.scored) served[i] = separation(row, a.centers + j * p, a.w, p);
      a.n_j[j] += v[i];
      add_row(a.sums + j * p, v[i], row, p);
      if (a.squares) add_squares(a.squares, v[i], row, p);
      if (holes) add_row(a.observed + j * p, v[i], full + i * p, p);
    }
    add_totals(a, v, served, b);
    return true;
  }
};

// Compute labels, distances and bounds per row. The loop ends at a row that is not finite in the
// model's coordinates, or whose squared norm overflows.
template <class R, class T> struct NearestCenters : Search<R, T> {
  using Base = Search<R, T>;
  using Base::a, Base::p, Base::exact, Base::smallest, Base::second, Base::nearest;

  using Base::Base;
  bool add(Index start, Index b) {
    const R* input = (const R*)a.rows + start * p;
    bool finite = true;
    Base::read(input, b, [&](Index i, Index n) {
      const double* some = exact + i * p;
      if (__builtin_isfinite(dot(some, some, n * p))) return;
      for (Index at = 0; at < n; at++) finite &= __builtin_isfinite(dot(some + at * p, some + at * p, p));
    });
    if (!finite) return false;
    Base::find(start, input, b);
    // Distances need not be exact here, only the choice of the nearest centre.
    Base::for_doubtful(b, T(a.slack), T(-1), T(INFINITE), [&](Index i, bool, T limit) {
      nearest[i] = Base::decide(input, i, limit);
      second[i] = smallest[i];  // may be the distance to another centre
    });
    for (Index i = 0; i < b; i++) {
      const Index at = start + i, j = Index(nearest[i]);
      a.labels[at] = int32_t(j);
      if (a.lists) Base::nearby.write(i, int32_t(j), a.lists + at * a.n_listed);
      if (a.distances) a.distances[at] = Base::exact_distance(input, i, j);
      if (!a.others) continue;
      // Centres at a distance d from a row have norms of at most 2 ‖z‖² + 2 d.
      const double norm = double(Base::norms[i]);
      double other = double(second[i]) + norm;
      // Centres that partial distances excluded are at least as far as the row's limit.
      if (Base::leading.active && !(double(Base::leading.limit(i)) + norm >= other))
        other = double(Base::leading.limit(i)) + norm;
      // Squares overflow in single precision where those of `exact` do not.
      if (other < INFINITE) other -= a.rounding * (3.0 * norm + 2.0 * other + a.slack);
      else if (Base::k > 1) other = 0.0;
      a.others[at] = other;
    }
    return true;
  }
};

// The nearest of the centres that are listed for each row.
template <class R, class T> struct NearestListed : Entry {
  static constexpr Index ABREAST = 4;
  const Step& a;
  const Index p = a.p;
  const T *const factors = (const T*)a.factors, *const norms = (const T*)a.norms;
  Coordinates<R, Step> coordinates{a};
  double *exact, *raw;
  T* z;
  int32_t* listed;  // centres with which the present row is compared
  Index n = 0;

  explicit NearestListed(const Step& a) : a(a) {}
  void place(Memory& memory) {
    coordinates.place(memory), memory(a.tile * p, exact);
    memory(a.code == WHITENED ? a.tile * p : 0, raw), memory(p, z);
    memory(a.n_listed + 1, listed);
  }
  void begin() { coordinates.begin(); }
  bool add(Index start, Index b) {
    coordinates.transform((const R*)a.rows + start * p, b, raw, exact);
    for (Index i = 0; i < b; i++) {
      const double* row = exact + i * p;
      int32_t& label = a.labels[start + i];
      list(a.lists + (start + i) * a.n_listed, label);
      for (Index f = 0; f < p; f++) z[f] = T(row[f]);
      T least = T(INFINITE), second = T(INFINITE);
      for (Index t = 0; t < n; t += ABREAST) {
        const T* lines[ABREAST];
        T products[ABREAST];
        for (Index at = 0; at < ABREAST; at++) lines[at] = factors + listed[t + at < n ? t + at : n - 1] * p;
        dots<T, ABREAST>(lines, z, p, products);
        for (Index at = 0; at < ABREAST && t + at < n; at++) {
          const int32_t j = listed[t + at];
          const T score = products[at] + norms[j];
          if (score < least) second = least, least = score, label = j;
          else if (score < second) second = score;
        }
      }
      const double norm = dot(row, row, p), span = 3.0 * norm + 2.0 * (double(least) + norm) + a.slack;
      if (!(double(second) - double(least) > a.rounding * span)) label = decide(row);
    }
    return true;
  }
  // List the different centres with which a row is compared, including its present one.
  void list(const int32_t* near, int32_t label) {
    listed[0] = label, n = 1;
    for (Index t = 0; t < a.n_listed; t++) {
      bool known = false;
      for (Index at = 0; at < n; at++) known |= listed[at] == near[t];
      if (!known) listed[n++] = near[t];
    }
  }
  // Find the nearest by differences in double precision, because products leave it open.
  int32_t decide(const double* row) const {
    double least = INFINITE;
    int32_t found = listed[0];
    for (Index t = 0; t < n; t++) {
      const double distance = separation(row, a.centers + listed[t] * p, a.w, p);
      if (distance < least || (distance == least && listed[t] < found)) least = distance, found = listed[t];
    }
    return found;
  }
};

// A hard step whose nearest centres are known. Distances to centres that stay, and sums of clusters
// that no row enters or leaves, are those of the step before, to the bit.
template <class R> struct KnownSums : Entry {
  const Step& a;
  const Index p = a.p;
  Coordinates<R, Step> coordinates{a};
  double *v, *exact;
  uint8_t* needed;

  explicit KnownSums(const Step& a) : a(a) {}
  void place(Memory& memory) {
    coordinates.place(memory), memory(a.tile, v), memory(a.tile * p, exact), memory(a.tile, needed);
  }
  void begin() { coordinates.begin(); }
  bool add(Index start, Index b) {
    const R* input = (const R*)a.rows + start * p;
    const int32_t* own = a.labels + start;
    double* served = a.distances + start;
    copy_weights(a, start, b, v);
    Index n_needed = 0;
    for (Index i = 0; i < b; i++) {
      needed[i] = a.moved[own[i]] || a.changed[own[i]] || served[i] < 0.0;
      n_needed += needed[i];
    }
    const bool together = n_needed * MANY > b;
    auto transform = [&](Index i) { coordinates.transform(input + i * p, 1, nullptr, exact + i * p); };
    if (together) coordinates.transform(input, b, nullptr, exact);
    for (Index i = 0; i < b; i++) {
      if (!needed[i]) continue;
      const Index j = own[i];
      if (!together) transform(i);
      if (a.moved[j] || served[i] < 0.0) served[i] = separation(exact + i * p, a.centers + j * p, a.w, p);
      if (!a.changed[j]) continue;
      a.n_j[j] += v[i];
      add_row(a.sums + j * p, v[i], exact + i * p, p);
    }
    const double worst = listed_from(a);
    for (Index i = 0; i < b; i++) {
      if (!(served[i] > worst && v[i] > 0.0)) continue;
      if (!together && !needed[i]) transform(i);
      list_farthest(a, start + i, separation(exact + i * p, a.centers + Index(own[i]) * p, a.w, p));
    }
    add_totals(a, v, served, b);
    return true;
  }
};

}  // namespace

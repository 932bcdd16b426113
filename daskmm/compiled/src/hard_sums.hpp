// Hard steps and nearest centres. Products find the nearest centres up to rounding; near ties are
// decided from the differences in double precision.
#pragma once
#include "partial.hpp"

namespace {

// The two smallest −2 zᵀθ + ‖θ‖² of each row, and the nearest centre, in the type of the distances.
template <class R, class T> struct Search : Tile<R, T> {
  using Base = Tile<R, T>;
  using Base::a, Base::p, Base::k, Base::rows, Base::d, Base::norms;
  Coordinates<R> coordinates;
  Leading<T> leading;
  Nearby<T> nearby;
  T *smallest, *second, *nearest;
  double *exact, *raw;

  explicit Search(const Step& a)
      : Base(a),
        coordinates(a.p, a.code, a.mean, a.scale, a.whitening, a.scaled != 0),
        leading(a),
        nearby(a) {}
  void place(Memory& memory) {
    Base::place(memory), coordinates.place(memory), leading.place(memory), nearby.place(memory);
    memory(rows, smallest, second, nearest);
    memory(rows * p, exact), memory(a.code == WHITENED ? rows * p : 0, raw);
  }
  void begin() { Base::begin(), coordinates.begin(), leading.begin(); }

  void find(Index start, const R* input, Index b) {
    for (Index q = 0; q < b * p; q++) Base::z[q] = T(exact[q]);
    Base::prepare(start, b);
    for (Index i = 0; i < rows; i++) smallest[i] = second[i] = T(INFINITE), nearest[i] = 0;
    nearby.begin();
    if (leading.q) return leading.find(*this, b);
    for (Index j = 0; j < k; j += 2) {
      Base::products(j, input, b);
      compare_pair(j, b);
      if (!nearby.size) continue;
      for (Index t = j; t < j + 2; t++) nearby.insert_line(t, d + t * rows, Base::norms_of_centers[t], b);
    }
  }
  INLINE void compare_pair(Index j, Index b) {
    const T *first = d + j * rows, *other = first + rows, *norm = Base::norms_of_centers + j;
    const Vector<T> own = everywhere(T(j)), next = everywhere(T(j + 1));
    for_vectors<T>(b, [&](Index i, int) {
      const Vector<T> x = load(first + i) + norm[0], y = load(other + i) + norm[1];
      const Vector<T> m = load(smallest + i), n = load(second + i);
      const Flags<T> swap = y < x;
      const Vector<T> low = swap ? y : x, high = swap ? x : y, closest = swap ? next : own;
      const Flags<T> better = low < m;
      const Vector<T> loser = better ? m : low, least = high < n ? high : n;
      store(second + i, loser < least ? loser : least);
      store(nearest + i, better ? closest : load(nearest + i));
      store(smallest + i, better ? low : m);
    });
  }

  // Whether products determine the nearest centre and an accurate distance: centres at a distance d
  // from a row have norms of at most 2 ‖z‖² + 2 d; where that does not hold, no reach is above
  // `slack`. Distances above `worst` may be listed, so must be exact.
  template <class V> INLINE auto settled(V m, V n, V norm, T slack, T cancelled, T worst) const {
    const V distance = m + norm, span = T(3) * norm + T(2) * distance + slack;
    return (n - m > T(a.rounding) * span) & (distance >= cancelled * span) & (distance <= worst);
  }
  // Call `redo(i, tied)` for the rows that are not settled; `tied`: the nearest centre is in doubt.
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
  // The nearest of the centres whose distance by products is not above `limit`.
  T decide(const R* input, Index i, T limit) const {
    double least = INFINITE;
    Index found = 0;
    if (leading.q) leading.restore(d, i);
    for (Index j = 0; j < k; j++) {
      T bound = d[j * rows + i] + Base::norms_of_centers[j];
      if (leading.q) bound -= leading.remainders[i] * leading.rests[j], limit = leading.limits[i];
      if (bound > limit) continue;
      const double distance = exact_distance(input, i, j);
      if (distance < least) least = distance, found = j;
    }
    return T(found);
  }
};

template <class R, class T> int hard_sums(const Step& a) {
  Search<R, T> search(a);
  const Index p = a.p, tile = a.tile, n_far = a.n_far;
  double *v, *served, *held;
  Memory memory;
  if (!memory.allocate(
          [&](Memory& m) { search.place(m), m(tile, v, served), m(search.holes ? tile * p : 0, held); }))
    return OUT_OF_MEMORY;
  search.begin();
  for (Index start = 0; start < a.n; start += tile) {
    const Index b = tile < a.n - start ? tile : a.n - start;
    const R* input = (const R*)a.rows + start * p;
    copy_weights(a, start, b, v);
    search.coordinates.transform(input, b, search.raw, search.exact);
    if (search.holes) {
      split_missing(search.exact, held, b * p);
      for (Index q = 0; q < b * p; q++) search.held[q] = T(held[q]);
    }
    search.find(start, input, b);
    for (Index i = 0; i < b; i++) served[i] = search.smallest[i] + search.norms[i];
    const T worst = T(n_far ? (1.0 - 1e-5) * a.far[n_far - 1] : INFINITE);
    search.for_doubtful(b, T(a.slack), T(a.cancelled), worst, [&](Index i, bool tied, T limit) {
      if (tied) search.nearest[i] = search.decide(input, i, limit);
      served[i] = search.exact_distance(input, i, Index(search.nearest[i]));
      if (n_far && v[i] > 0.0 && served[i] > a.far[n_far - 1])
        insert_farthest(served[i], a.first_row + start + i, a.far, a.far_rows, n_far);
    });
    for (Index i = 0; i < b; i++) {
      const Index j = Index(search.nearest[i]);
      const double* row = search.exact + i * p;
      if (a.scored) served[i] = separation(row, a.centers + j * p, a.w, p);
      a.n_j[j] += v[i];
      add_row(a.sums + j * p, v[i], row, p);
      if (a.squares) add_squares(a.squares, v[i], row, p);
      if (search.holes) add_row(a.observed + j * p, v[i], held + i * p, p);
    }
    const double inertia = dot(v, served, b);
    a.totals[0] += inertia;
    a.totals[1] += inertia;
    for (Index i = 0; i < b; i++) a.totals[2] += v[i];
  }
  return DONE;
}

// Labels, distances and bounds per row. NOT_FINITE: a row is not finite in the model's coordinates,
// or its squared norm overflows.
template <class T> int nearest_centers(const Step& a) {
  Search<T, T> search(a);
  const Index p = a.p, tile = a.tile;
  Memory memory;
  if (!memory.allocate([&](Memory& m) { search.place(m); })) return OUT_OF_MEMORY;
  search.begin();
  for (Index start = 0; start < a.n; start += tile) {
    const Index b = tile < a.n - start ? tile : a.n - start;
    const T* input = (const T*)a.rows + start * p;
    const double* exact = search.exact;
    search.coordinates.transform(input, b, search.raw, search.exact);
    if (!__builtin_isfinite(dot(exact, exact, b * p)))
      for (Index i = 0; i < b; i++)
        if (!__builtin_isfinite(dot(exact + i * p, exact + i * p, p))) return NOT_FINITE;
    search.find(start, input, b);
    // Distances need not be exact here, only the choice of the nearest centre.
    search.for_doubtful(b, T(0), T(-1), T(INFINITE), [&](Index i, bool, T limit) {
      search.nearest[i] = search.decide(input, i, limit);
      search.second[i] = search.smallest[i];  // may be the distance to another centre
    });
    for (Index i = 0; i < b; i++) {
      const Index at = start + i, j = Index(search.nearest[i]);
      a.labels[at] = int32_t(j);
      if (a.lists) search.nearby.write(i, int32_t(j), a.lists + at * a.n_listed);
      if (a.distances) a.distances[at] = search.exact_distance(input, i, j);
      if (!a.others) continue;
      // Centres at a distance d from a row have norms of at most 2 ‖z‖² + 2 d.
      const double norm = double(search.norms[i]);
      double other = double(search.second[i]) + norm;
      // Centres that partial distances excluded may be as near as their limit.
      if (search.leading.q && double(search.leading.limits[i]) + norm < other)
        other = double(search.leading.limits[i]) + norm;
      a.others[at] = other < INFINITE ? other - a.rounding * (3.0 * norm + 2.0 * other) : other;
    }
  }
  return DONE;
}

// The nearest of the centres that are listed for each row.
template <class T> int nearest_listed(const Step& a) {
  constexpr Index ABREAST = 4;
  const Index p = a.p, tile = a.tile, last = a.n_listed - 1;
  Coordinates<T> coordinates(p, a.code, a.mean, a.scale, a.whitening, a.scaled != 0);
  const T *factors = (const T*)a.factors, *norms = (const T*)a.norms;
  double *exact, *raw;
  T* z;
  Memory memory;
  if (!memory.allocate([&](Memory& m) {
        coordinates.place(m), m(tile * p, exact), m(a.code == WHITENED ? tile * p : 0, raw), m(p, z);
      }))
    return OUT_OF_MEMORY;
  coordinates.begin();
  for (Index start = 0; start < a.n; start += tile) {
    const Index b = tile < a.n - start ? tile : a.n - start;
    coordinates.transform((const T*)a.rows + start * p, b, raw, exact);
    for (Index i = 0; i < b; i++) {
      const int32_t* listed = a.lists + (start + i) * a.n_listed;
      for (Index f = 0; f < p; f++) z[f] = T(exact[i * p + f]);
      T least = T(INFINITE);
      for (Index t = 0; t <= last; t += ABREAST) {
        const T* lines[ABREAST];
        T products[ABREAST];
        for (Index at = 0; at < ABREAST; at++)
          lines[at] = factors + listed[t + at < last ? t + at : last] * p;
        dots<T, ABREAST>(lines, z, p, products);
        for (Index at = 0; at < ABREAST && t + at <= last; at++) {
          const Index j = listed[t + at];
          const T score = products[at] + norms[j];
          if (score < least) least = score, a.labels[start + i] = int32_t(j);
        }
      }
    }
  }
  return DONE;
}

// A hard step whose nearest centres are known. Distances to centres that stay, and sums of clusters
// that no row enters or leaves, are those of the step before, to the bit.
template <class R> int known_sums(const Step& a) {
  const Index p = a.p, tile = a.tile, n_far = a.n_far;
  Coordinates<R> coordinates(p, a.code, a.mean, a.scale, nullptr, a.scaled != 0);
  double *v, *exact;
  uint8_t* needed;
  Memory memory;
  if (!memory.allocate(
          [&](Memory& m) { coordinates.place(m), m(tile, v), m(tile * p, exact), m(tile, needed); }))
    return OUT_OF_MEMORY;
  coordinates.begin();
  for (Index start = 0; start < a.n; start += tile) {
    const Index b = tile < a.n - start ? tile : a.n - start;
    const R* input = (const R*)a.rows + start * p;
    const int32_t* own = a.labels + start;
    double* served = a.distances + start;
    copy_weights(a, start, b, v);
    Index n_needed = 0;
    for (Index i = 0; i < b; i++) {
      needed[i] = a.moved[own[i]] || a.changed[own[i]] || served[i] < 0.0;
      n_needed += needed[i];
    }
    const bool together = n_needed * 16 > b;
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
    // Rounding does not decide which rows are listed.
    const double worst = n_far ? (1.0 - 1e-5) * a.far[n_far - 1] : INFINITE;
    for (Index i = 0; i < b; i++) {
      if (!(served[i] > worst && v[i] > 0.0)) continue;
      if (!together && !needed[i]) transform(i);
      const double distance = separation(exact + i * p, a.centers + Index(own[i]) * p, a.w, p);
      if (distance > a.far[n_far - 1])
        insert_farthest(distance, a.first_row + start + i, a.far, a.far_rows, n_far);
    }
    const double inertia = dot(v, served, b);
    a.totals[0] += inertia;
    a.totals[1] += inertia;
    for (Index i = 0; i < b; i++) a.totals[2] += v[i];
  }
  return DONE;
}

}  // namespace

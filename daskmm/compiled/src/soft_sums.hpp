// Sums of one set of centres at a finite power: distances, their power means and the weighted sums
// of a block. Distances and weights are computed in the type of the rows, sums in double precision.
#pragma once
#include "tile.hpp"

namespace {

template <class T> struct SoftSums : Tile<T, T> {
  using Base = Tile<T, T>;
  using Base::a, Base::p, Base::k, Base::rows, Base::d, Base::z, Base::norms, Base::holes;
  const T cancelled = T(a.cancelled), lowest = T(a.lowest), low = T(a.low), high = T(a.high);
  const T tie = T(a.tie), slack = T(a.slack), rounding = T(a.rounding);
  const T power = T(a.s - 1.0), inverse_s = T(1.0 / a.s);
  const bool exactly = a.code < PLAIN;                   // rows are transformed in double precision
  const bool few = a.ratio_limits != nullptr;            // most weights may be negligible
  const Index width = rounded_up(p, LENGTH<T>);          // numbers per line of `part`
  const Index most = few ? (k / LISTED + 1) * rows : 0;  // weights that can be listed
  Index listing_from = 0;
  Coordinates<T, Step> coordinates{a};
  RowNumbers<T> of;
  Listed<T> list;
  T *part, *packed, *factor, *mean_u, *means, *rests, *scales;
  double *v, *smallest, *value, *hardness, *raw, *exact, *apart;

  using Base::Base;
  void place(Memory& memory) {
    Base::place(memory), coordinates.place(memory);
    memory(rows, of.smallest, of.inverse, of.tie, of.total, of.tied, factor, mean_u);
    memory(coordinates.length, means, rests, scales);
    memory(rows, v, smallest, value, hardness), memory(k, apart);
    memory(Base::n_lines * width, part), memory(rows * width, packed);
    memory(exactly ? rows * p : 0, raw, exact);
    memory(few ? k + 1 : 0, list.firsts), memory(few ? most + 2 * rows : 0, list.rows, list.excess, list.phi);
  }

  void begin() {
    Base::begin(), coordinates.begin();
    list.most = most;
    for (Index q = 0; q < coordinates.length; q++) {
      means[q] = T(coordinates.means[q]);
      rests[q] = T(coordinates.means[q] - double(means[q]));
      scales[q] = T(coordinates.scales[q]);
    }
  }

  void transform(const T* input, Index b) {
    if (exactly) {
      coordinates.transform(input, b, raw, exact);
      for (Index q = 0; q < b * p; q++) z[q] = T(exact[q]);
    } else shift_and_scale<T, T>(input, b * p, coordinates.length, means, rests, scales, a.scaled != 0, z);
    if (holes) split_missing(z, Base::held, b * p);
  }

  double exact_distance(const T* input, Index i, Index j) const {
    const double* center = a.centers + j * p;
    if (exactly) return separation(exact + i * p, center, a.w, p);
    const T* row = input + i * p;
    if (a.code >= 0) return coordinates.divergence(row, center, a.w);
    double total = 0.0;
    for (Index f = 0; f < p; f++) {
      const double difference = (double(row[f]) - a.mean[f]) / a.scale[f] - center[f];
      total += a.w[f] * difference * difference;
    }
    return total;
  }

  // Turn the products of centres j and j + 1 into distances, and find the smallest one of each row
  // among those that have kept their digits; return how many rows have distances that lost them.
  INLINE Index complete(Index j, Index b) {
    T *first = d + j * rows, *second = first + rows;
    const T norm = Base::norms_of_centers[j], norm2 = Base::norms_of_centers[j + 1];
    const T reach = Base::reaches[j], reach2 = Base::reaches[j + 1];
    Flags<T> doubtful{};
    for_vectors<T>(b, [&](Index i, int n_lanes) {
      const Vector<T> own = load(norms + i), m = load(of.smallest + i);
      const Vector<T> x = load(first + i) + (own + norm), y = load(second + i) + (own + norm2);
      const Flags<T> sound = x >= cancelled * (own + reach), sound2 = y >= cancelled * (own + reach2);
      store(first + i, x), store(second + i, y);
      doubtful += counted<T>(~(sound & sound2), n_lanes);
      const Vector<T> u = sound ? x : m, w = sound2 ? y : m, least = u < m ? u : m;
      store(of.smallest + i, w < least ? w : least);
    });
    return count<T>(doubtful);
  }
  // Compute the distances to centres j and j + 1 that have lost their digits from the differences.
  void recompute(const T* input, Index j, Index b) {
    for (Index c = j; c < j + 2 && c < k; c++)
      for (Index i = 0; i < b; i++) {
        if (d[c * rows + i] >= cancelled * (norms[i] + Base::reaches[c])) continue;
        const double found = exact_distance(input, i, c), least = 1e-3 * double(low);
        // The distance must not underflow to zero in a narrow type.
        const T kept = found == 0.0 ? T(0) : T(found < least ? least : found);
        d[c * rows + i] = kept;
        if (kept < of.smallest[i]) of.smallest[i] = kept;
      }
  }

  // Compute 1/m and the tie of each row; return how many rows leave the regular range of T.
  Index invert(Index b) {
    Flags<T> irregular{};
    for_vectors<T>(b, [&](Index i, int n_lanes) {
      const Vector<T> m = load(of.smallest + i), own = load(norms + i), inverse = T(1) / m, zero{};
      const Vector<T> doubt = rounding * (T(3) * own + T(2) * m + slack) * inverse;
      store(of.inverse + i, inverse);
      store(of.tie + i, tie + (m > zero ? doubt : zero));
      irregular += counted<T>(~((m == zero) | ((m >= low) & (own <= high))), n_lanes);
    });
    return count<T>(irregular);
  }
  // Where a row's distances leave this range, compute them exactly, and divide them by a power of 2
  // near the smallest.
  void rescale(const T* input, Index b) {
    for (Index i = 0; i < b; i++) {
      if (of.smallest[i] == 0 || (of.smallest[i] >= low && norms[i] <= high)) continue;
      double least = INFINITE;
      for (Index j = 0; j < k; j++) {
        apart[j] = exact_distance(input, i, j);
        least = apart[j] < least ? apart[j] : least;
      }
      int exponent = 0;
      const bool regular = least != 0.0 && least != INFINITE;
      if (regular) __builtin_frexp(least, &exponent);
      for (Index j = 0; j < k; j++)
        d[j * rows + i] = T(regular             ? __builtin_ldexp(apart[j], -exponent)
                            : apart[j] == least ? least
                                                : INFINITE);
      smallest[i] = least;
      of.smallest[i] = T(regular ? __builtin_ldexp(least, -exponent) : least);
      of.inverse[i] = T(1) / of.smallest[i];
      of.tie[i] = tie;
    }
  }

  // Compute v (mean u)^(1/s)/Σu, the factor that turns r^(s−1) into weights, then M_s and hardness.
  void average(Index b) {
    const T n_clusters = T(k);
    for_vectors<T>(b, [&](Index i, int) {
      const Vector<T> u = load(of.total + i), e = (n_clusters - u) / u, zero{}, largest = everywhere(T(1023));
      const Vector<T> exponent = -inverse_s * log2_1p<T>(e > zero ? e : zero);
      store(mean_u + i, exp2<T>(exponent < largest ? exponent : largest));
    });
    for (Index i = 0; i < b; i++) {
      const double u = of.total[i], mean = mean_u[i];
      factor[i] = T(v[i] * mean / u);
      value[i] = smallest[i] * mean;
      hardness[i] = T(of.tied[i] / of.total[i]);
    }
    for (Index i = b; i < rows; i++) factor[i] = 0;
    a.totals[0] += dot(v, value, b);
    a.totals[1] += dot(v, smallest, b);
    a.totals[2] += dot(v, hardness, b);
  }

  // Multiply the weights of a centre by the rows' factors; return their sum.
  INLINE T multiply(T* phi, Index b) {
    constexpr int L = LENGTH<T>;
    Vector<T> totals[2] = {};
    for (Index i = 0; i < b; i += 2 * L)
      for (int v = 0; v < 2 && i + v * L < b; v++) {
        const Vector<T> product = load(phi + i + v * L) * load(factor + i + v * L);
        totals[v] += product;
        store(phi + i + v * L, product);
      }
    return sum_of<T>(totals[0] + totals[1]);
  }
  void add_parts(double* sums) {
    for (Index j = 0; j < k; j++)
      for (Index f = 0; f < p; f++) sums[j * p + f] += double(part[j * width + f]);
  }
  void add_all(Index b) {
    pack_features(z, p, b, packed, width);
    for (Index j = 0; j < k; j++) {
      a.n_j[j] += double(multiply(d + j * rows, b));
      const Index first = j / CENTERS * CENTERS;
      if (j == first + CENTERS - 1 || j == k - 1)
        panel_sums(d + first * rows, rows, packed, b, part + first * width, width);
    }
    add_parts(a.sums);
    if (holes) {
      pack_features(Base::held, p, b, packed, width);
      for (Index j = 0; j < k; j += CENTERS)
        panel_sums(d + j * rows, rows, packed, b, part + j * width, width);
      add_parts(a.observed);
    }
    if (!a.squares) return;
    memset(of.total, 0, rows * sizeof(T));
    for (Index j = 0; j < k; j++)
      for (Index i = 0; i < b; i++) of.total[i] += d[j * rows + i];
  }

  bool add(Index start, Index b) {
    const Index number = start / rows;
    const bool listing = few && number >= listing_from;
    const T* input = (const T*)a.rows + start * p;
    copy_weights(a, start, b, v);
    transform(input, b);
    Base::prepare(start, b);
    for (Index i = 0; i < rows; i++) of.smallest[i] = T(INFINITE);
    for (Index j = 0; j < k; j += 2) {
      Base::products(j, input, b);
      if (complete(j, b)) recompute(input, j, b);
    }
    for (Index i = 0; i < b; i++) smallest[i] = of.smallest[i];
    if (invert(b)) rescale(input, b);
    memset(of.total, 0, rows * sizeof(T)), memset(of.tied, 0, rows * sizeof(T));
    const Index listed = listing ? list_weights(d, rows, k, b, (const T*)a.ratio_limits, of, list) : -1;
    const Index left = a.n - start - b, n_later = (left < rows ? left : rows) * p;
    if (listed >= 0) weigh_listed(list, listed, power, of);
    else weigh_all(d, rows, k, b, of, Weighing<T>{power, lowest, input + b * p, n_later});
    average(b);
    if (listed >= 0) add_listed(list, factor, z, p, k, a.n_j, a.sums, of.total, rows);
    else add_all(b);
    if (a.squares)
      for (Index i = 0; i < b; i++) add_squares(a.squares, of.total[i], z + i * p, p);
    if (listing && listed < 0) listing_from = (number / RETRIED + 1) * RETRIED;
    return true;
  }
};

}  // namespace

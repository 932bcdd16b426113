// Partial distances: products along a few leading directions exclude most centres of a row exactly.
// With y = Q z along the directions, and by Cauchy–Schwarz for the rest of the row,
// −2 zᵀθ ≥ −2 yᵀ(Qθ) − 2 ‖z − Qᵀy‖ ‖θ − QᵀQθ‖.
// Products of rows and centres rounded to bfloat16 exclude more, where a processor has these.
#pragma once
#include "rounded.hpp"

namespace {

// Bit `lane` is set where the flag of that lane is.
template <class T> INLINE uint32_t bits_of(Flags<T> flags) {
#if HAVE_AVX512 && !defined(DASKMM_EMULATED_AVX512)
  if constexpr (sizeof(T) == 4) return _mm512_movepi32_mask((__m512i)flags);
  else return _mm512_movepi64_mask((__m512i)flags);
#elif defined(__AVX2__) && REGISTER_BYTES == 32
  Vector<T> signs;
  __builtin_memcpy(&signs, &flags, sizeof flags);
  if constexpr (sizeof(T) == 4) return uint32_t(__builtin_ia32_movmskps256(signs));
  else return uint32_t(__builtin_ia32_movmskpd256(signs));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < LENGTH<T>; lane++) bits |= uint32_t(flags[lane] & 1) << lane;
  return bits;
#endif
}

// Write the products of N rows with one centre's factors.
template <class T, int N>
INLINE void dots(const T* const (&rows)[N], const T* factors, Index p, T (&out)[N]) {
  constexpr int L = LENGTH<T>;
  Vector<T> sums[N][2] = {};
  Index f = 0;
  for (; f + 2 * L <= p; f += 2 * L) UNROLLED
    for (int v = 0; v < 2; v++) {
      const Vector<T> factor = load(factors + f + v * L);
      UNROLLED for (int n = 0; n < N; n++)
        sums[n][v] += factor * load(rows[n] + f + v * L);
    }
  UNROLLED for (int n = 0; n < N; n++) {
    T total = sum_of<T>(sums[n][0] + sums[n][1]);
    for (Index g = f; g < p; g++) total += factors[g] * rows[n][g];
    out[n] = total;
  }
}

// For each row of a tile, the nearest of the centres that it was compared with, in ascending order.
template <class T> struct Nearby {
  const Index size, rows;  // centres listed per row; none are listed if this is 0
  T *scores, *worst;
  int32_t* centers;

  explicit Nearby(const Step& a) : size(a.lists ? a.n_listed : 0), rows(a.tile) {}
  void place(Memory& memory) { memory(rows * size, scores, centers), memory(size ? rows : 0, worst); }
  void begin() {
    for (Index i = 0; i < rows * size; i++) scores[i] = T(INFINITE), centers[i] = -1;
    for (Index i = 0; i < (size ? rows : 0); i++) worst[i] = T(INFINITE);
  }
  void insert(Index i, T score, Index j) {
    T* own = scores + i * size;
    int32_t* at = centers + i * size;
    if (!(score < worst[i])) return;
    Index place = size - 1;
    for (; place > 0 && own[place - 1] > score; place--)
      own[place] = own[place - 1], at[place] = at[place - 1];
    own[place] = score, at[place] = int32_t(j);
    worst[i] = own[size - 1];
  }
  // Insert all rows whose products with the j-th centre are small.
  void insert_line(Index j, const T* line, T norm, Index b) {
    for_vectors<T>(b, [&](Index i, int n_lanes) {
      const Vector<T> score = load(line + i) + norm;
      for (uint32_t left = bits_of<T>(counted<T>(score < load(worst + i), n_lanes)); left; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        insert(i + lane, score[lane], j);
      }
    });
  }
  // Write the list of a row, in which its nearest centre takes the places that are free.
  void write(Index i, int32_t nearest, int32_t* out) const {
    bool holds = false;
    for (Index t = 0; t < size; t++) {
      out[t] = centers[i * size + t] < 0 ? nearest : centers[i * size + t];
      holds |= out[t] == nearest;
    }
    if (!holds) out[size - 1] = nearest;
  }
};
// Compare the scores of centres j and j + 1 with the smallest of each row, and with the second one.
template <class T, bool SECOND> INLINE void compare_pair(const T* line, Index rows, Index j, const T* norm,
                                                         T* smallest, T* second, T* nearest, Index b) {
  const Vector<T> own = everywhere(T(j)), next = everywhere(T(j + 1));
  for_vectors<T>(b, [&](Index i, int) {
    const Vector<T> x = load(line + i) + norm[0], y = load(line + rows + i) + norm[1];
    const Vector<T> m = load(smallest + i);
    const Flags<T> swap = y < x;
    const Vector<T> low = swap ? y : x, closest = swap ? next : own;
    const Flags<T> better = low < m;
    if constexpr (SECOND) {
      const Vector<T> high = swap ? x : y, n = load(second + i);
      const Vector<T> loser = better ? m : low, least = high < n ? high : n;
      store(second + i, loser < least ? loser : least);
    }
    store(nearest + i, better ? closest : load(nearest + i));
    store(smallest + i, better ? low : m);
  });
}

// Products along leading directions, and what these lack.
template <class T> struct Directions {
  static constexpr bool NEARLY_EXACT = false;  // centres near a row are listed by their distances
  const Step& a;
  const Index p = a.p, k = a.k, q = a.n_leading, rows = a.tile;
  const T *const basis = (const T*)a.basis, *const norms = (const T*)a.norms,
                 *const rests = (const T*)a.rests;
  T* factors;         // centres along the directions, padded to whole groups
  T *y, *remainders;  // panels of rows along the directions, and the norms of their remainders
  T* own;             // a row along the directions

  explicit Directions(const Step& a) : a(a) {}
  void place(Memory& memory) {
    memory(rounded_up(k, CENTERS) * q, factors), memory(rows * q, y), memory(q, own);
    memory(q ? rows : 0, remainders);
  }
  void begin() {
    if (q) memcpy(factors, a.leading, size_t(k) * q * sizeof(T));
  }
  // Write panels of the rows along the directions; `slack` exceeds the rounding of squared norms.
  template <class Search> void prepare(const Search& s, T slack, Index b) {
    for (Index i = 0; i < b; i += WIDTH<T>) {
      T* out = y + i * q;
      for (Index c = 0; c < q; c += AT_ONCE)
        multiply_panel<T, AT_ONCE, GROUP>(basis + c * p, p, s.panels + i * s.height, WIDTH<T>, p,
                                          out + c * WIDTH<T>, WIDTH<T>);
      for (int v = 0; v < GROUP; v++) {
        Vector<T> rest = load(s.norms + i + v * LENGTH<T>) * (T(1) + slack);
        for (Index c = 0; c < q; c++) {
          const Vector<T> x = load(out + c * WIDTH<T> + v * LENGTH<T>);
          rest -= x * x;
        }
        for (int lane = 0; lane < LENGTH<T>; lane++)
          remainders[i + v * LENGTH<T> + lane] = rest[lane] > T(0) ? __builtin_sqrt(rest[lane]) : T(0);
      }
    }
  }
  T shift(Index) const { return T(0); }
  // Write the products of some centres with all rows along the directions.
  void products(Index from, Index end, T* lines, Index b) const {
    for (Index j = from; j < end; j += CENTERS)
      panel_products<T, false>(factors + j * q, q, y, q, b, lines + (j - from) * rows, rows, k - j);
  }
  void choose(Index i) {
    const T* panel = y + i / WIDTH<T> * WIDTH<T> * q + i % WIDTH<T>;
    for (Index c = 0; c < q; c++) own[c] = panel[c * WIDTH<T>];
  }
  // Return the product of the j-th centre with the chosen row along the directions.
  T product(Index j) const {
    const T* const row[1] = {own};
    T found[1];
    dots<T, 1>(row, factors + j * q, q, found);
    return found[0];
  }
};

// The search of a tile's nearest centres by partial distances.
template <class T> struct Leading {
  // Bounds of distances are lowered by this many times the rounding of a product.
  static constexpr T SLACK = 8;
  // The products of this many centres are in the cache at a time, unless those of all fit into it.
  static constexpr Index CHUNK = 512, FIT = 1 << 18;

  const Step& a;
  const Index p = a.p, k = a.k, rows = a.tile;
  const bool rounded = a.rounded && sizeof(T) == sizeof(float), active = rounded || a.n_leading;
  const Index chunk = a.guesses || (rounded && k * rows > FIT) ? CHUNK : k;
  const T* const factors = (const T*)a.factors;
  Directions<T> directions{a};
  Rounded of_rounded{a};
  T *first, *least;  // the candidate whose partial distance is least, and that distance
  T* limits;         // the largest bound that does not exclude a centre
  int32_t* listed;

  explicit Leading(const Step& a) : a(a) {}
  void place(Memory& memory) {
    directions.place(memory);
    if (rounded) of_rounded.place(memory);
    memory(active ? rows : 0, first, least, limits), memory(active ? rows + LENGTH<T> : 0, listed);
  }
  void begin() {
    directions.begin();
    if (rounded) of_rounded.begin();
  }
  // Call `use` with the products that are in use.
  template <class Use> INLINE auto with_products(Use use) {
    if constexpr (sizeof(T) == sizeof(float))
      if (rounded) return use(of_rounded);
    return use(directions);
  }

  // Write each row's smallest score and its centre, and the second smallest among compared centres.
  template <class Search> void find(Search& s, const int32_t* guesses, Index b) {
    with_products([&](auto& by) { find_by(by, s, guesses, b); });
  }
  template <class By, class Search> void find_by(By& by, Search& s, const int32_t* guesses, Index b) {
    by.prepare(s, T(SLACK * a.rounding), b);
    for (Index i = 0; i < rows; i++) limits[i] = i < b ? T(INFINITE) : -T(INFINITE);
    for (Index i = 0; guesses && i < b; i++) {
      first[i] = T(guesses[i]);
      const int32_t at[1] = {int32_t(i)};
      compare<1>(by, s, guesses[i], at, 1);
    }
    for (Index from = 0; from < k; from += chunk) {
      const Index end = k - from < chunk ? k : from + chunk;
      by.products(from, end, s.d, b);
      if (By::NEARLY_EXACT && s.nearby.size)
        for (Index j = from; j < end; j++) s.nearby.insert_line(j, s.d + (j - from) * rows, by.norms[j], b);
      if (!guesses) compare_first(by, s, from, end, b);
      for (Index i = 0; i < b; i++) {  // the first candidate is not compared again
        const Index j = Index(first[i]);
        if (from <= j && j < end) s.d[(j - from) * rows + i] = T(INFINITE);
      }
      for (Index j = from; j < end; j++) {
        const T* line = s.d + (j - from) * rows;
        const Index n = list(line, by.remainders, limits, by.norms[j], by.rests[j], b, listed);
        for (Index at = 0; at < n; at += 4) compare<4>(by, s, j, listed + at, n - at < 4 ? n - at : 4);
      }
    }
  }
  // Compare each row with the centre whose partial distance is least, unless the bound excludes it.
  template <class By, class Search>
  INLINE void compare_first(By& by, Search& s, Index from, Index end, Index b) {
    for (Index i = 0; i < rows; i++) least[i] = T(INFINITE), first[i] = T(from);
    for (Index j = from; j < end; j += 2)
      compare_pair<T, false>(s.d + (j - from) * rows, rows, j, by.norms + j, least, nullptr, first, b);
    for (Index i = 0; i < b; i++) {
      const Index j = Index(first[i]);
      const int32_t at[1] = {int32_t(i)};
      if (!(least[i] - by.remainders[i] * by.rests[j] > limits[i])) compare<1>(by, s, j, at, 1);
    }
  }
  T limit_of(T smallest, T norm) const {
    return smallest + T(SLACK * a.rounding) * (T(3) * norm + T(2) * (smallest + norm) + T(a.slack));
  }
  // Return the largest score that does not exclude a centre from being the nearest to a row.
  T limit(Index i) const { return limits[i] - (rounded ? of_rounded.shift(i) : T(0)); }

  // List the rows for which the bound does not exclude a centre.
  static INLINE Index list(const T* __restrict line, const T* __restrict remainders,
                           const T* __restrict limits, T norm, T rest, Index b, int32_t* __restrict listed) {
    constexpr int L = LENGTH<T>, N = GROUP;
    Index n = 0;
    for (Index i = 0; i < b; i += N * L) {
      uint32_t near[N], found = 0;
      UNROLLED for (int v = 0; v < N; v++) {
        const Index at = i + v * L;
        const Vector<T> bound = load(line + at) + norm - load(remainders + at) * rest;
        near[v] = bits_of<T>(bound <= load(limits + at));
        found |= near[v];
      }
      if (!found) continue;
      UNROLLED for (int v = 0; v < N; v++)
        for (uint32_t left = near[v]; left; left &= left - 1)
          listed[n++] = int32_t(i + v * L + __builtin_ctz(left));
    }
    return n;
  }
  // Prepare `excludes` for a row. The first candidate counts again in a tie.
  void restore(T* d, Index i) {
    if (chunk < k) with_products([&](auto& by) { by.choose(i); });
    else d[Index(first[i]) * rows + i] = -T(INFINITE);
  }
  // Return whether the bound excludes the j-th centre from being the nearest to that row.
  bool excludes(const T* d, Index i, Index j) {
    return with_products([&](auto& by) {
      const T product = chunk < k ? by.product(j) : d[j * rows + i];
      return product + by.norms[j] - by.remainders[i] * by.rests[j] > limits[i];
    });
  }
  // Compare up to N rows with the j-th centre.
  template <int N, class By, class Search>
  INLINE void compare(By& by, Search& s, Index j, const int32_t* some, Index n) {
    const T *row[N], norm = s.norms_of_centers[j];
    T found[N];
    for (Index at = 0; at < N; at++) row[at] = s.z + some[at < n ? at : 0] * p;
    dots<T, N>(row, factors + j * p, p, found);
    for (Index at = 0; at < n; at++) {
      const Index i = some[at];
      const T x = found[at] + norm;
      if (!By::NEARLY_EXACT && s.nearby.size) s.nearby.insert(i, x, j);
      if (x < s.smallest[i]) {
        s.second[i] = s.smallest[i] < s.second[i] ? s.smallest[i] : s.second[i];
        s.smallest[i] = x, s.nearest[i] = T(j);
        limits[i] = limit_of(x, s.norms[i]) + by.shift(i);
      } else if (x < s.second[i]) s.second[i] = x;
    }
  }
};

}  // namespace

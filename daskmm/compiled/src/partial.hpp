// Partial distances: products along a few leading directions exclude most centres of a row exactly.
// With y = Q z along the directions, and by Cauchy–Schwarz for the rest of the row,
// −2 zᵀθ ≥ −2 yᵀ(Qθ) − 2 ‖z − Qᵀy‖ ‖θ − QᵀQθ‖.
#pragma once
#include "tile.hpp"

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

// The search of a tile's nearest centres by partial distances.
template <class T> struct Leading {
  // Bounds of distances are lowered by this many times the rounding of a product.
  static constexpr T SLACK = 8;
  // Given guesses, the products of this many centres are in the cache at a time; otherwise all are.
  static constexpr Index CHUNK = 512;

  const Step& a;
  const Index p = a.p, k = a.k, q = a.n_leading, rows = a.tile;
  const T *const basis = (const T*)a.basis, *const rests = (const T*)a.rests;
  T* factors;         // centres along the directions, padded to whole groups
  T *y, *remainders;  // panels of rows along the directions, and the norms of their remainders
  T *first, *limits;  // the first candidate, and the largest bound that does not exclude a centre
  T* own;  // a row along the directions
  int32_t* listed;

  explicit Leading(const Step& a) : a(a) {}
  void place(Memory& memory) {
    memory(rounded_up(k, CENTERS) * q, factors), memory(rows * q, y), memory(q, own);
    memory(q ? rows : 0, remainders, first, limits), memory(q ? rows + LENGTH<T> : 0, listed);
  }
  void begin() {
    if (q) memcpy(factors, a.leading, size_t(k) * q * sizeof(T));
  }

  // Write panels of the rows along the directions; `norms` are the squared norms of the rows.
  void rotate(const T* panels, Index height, const T* norms, Index b) {
    for (Index i = 0; i < b; i += WIDTH<T>) {
      T* out = y + i * q;
      for (Index c = 0; c < q; c += AT_ONCE)
        multiply_panel<T, AT_ONCE, GROUP>(basis + c * p, p, panels + i * height, WIDTH<T>, p,
                                          out + c * WIDTH<T>, WIDTH<T>);
      for (int v = 0; v < GROUP; v++) {
        Vector<T> rest = load(norms + i + v * LENGTH<T>) * T(1.0 + SLACK * a.rounding);
        for (Index c = 0; c < q; c++) {
          const Vector<T> x = load(out + c * WIDTH<T> + v * LENGTH<T>);
          rest -= x * x;
        }
        for (int lane = 0; lane < LENGTH<T>; lane++)
          remainders[i + v * LENGTH<T> + lane] = rest[lane] > T(0) ? __builtin_sqrt(rest[lane]) : T(0);
      }
    }
  }
  T limit_of(T smallest, T norm) const {
    return smallest + T(SLACK * a.rounding) * (T(3) * norm + T(2) * (smallest + norm) + T(a.slack));
  }

  // Write each row's smallest score and its centre, and the second smallest among compared centres.
  template <class Search> void find(Search& s, const int32_t* guesses, Index b) {
    rotate(s.panels, s.height, s.norms, b);
    for (Index i = 0; i < rows; i++) s.smallest[i] = T(INFINITE), first[i] = 0, limits[i] = -T(INFINITE);
    const T* norms = s.norms_of_centers;
    if (guesses)
      for (Index i = 0; i < b; i++) first[i] = T(guesses[i]);
    else  // the centre that would be nearest if the remainders were orthogonal
      for (Index j = 0; j < k; j += 2) {
        if (j % CENTERS == 0) products(j, s.d + j * rows, b);
        compare_pair<T, false>(s.d + j * rows, rows, j, norms + j, s.smallest, nullptr, first, b);
      }
    for (Index i = 0; i < b; i++) {
      const Index j = Index(first[i]);
      const T* const row[1] = {s.z + i * p};
      T found[1];
      dots<T, 1>(row, s.factors + j * p, p, found);
      s.nearest[i] = first[i], s.smallest[i] = found[0] + norms[j];
      if (s.nearby.size) s.nearby.insert(i, s.smallest[i], j);
      limits[i] = limit_of(s.smallest[i], s.norms[i]);
    }
    const Index chunk = guesses ? CHUNK : k;
    for (Index from = 0; from < k; from += chunk) {
      const Index end = k - from < chunk ? k : from + chunk;
      for (Index j = from; guesses && j < end; j += CENTERS) products(j, s.d + (j - from) * rows, b);
      for (Index i = 0; i < b; i++) {  // the first candidate is not compared again
        const Index j = Index(first[i]);
        if (from <= j && j < end) s.d[(j - from) * rows + i] = T(INFINITE);
      }
      for (Index j = from; j < end; j++) {
        const Index n = list(s.d + (j - from) * rows, remainders, limits, norms[j], rests[j], b, listed);
        for (Index at = 0; at < n; at += 4) compare(s, j, norms[j], listed + at, n - at < 4 ? n - at : 4);
      }
    }
  }
  // Write the products of the centres from the j-th on with all rows along the directions.
  INLINE void products(Index j, T* lines, Index b) const {
    panel_products<T, false>(factors + j * q, q, y, q, b, lines, rows, k - j);
  }
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
  // Prepare `product` for a row. The first candidate counts again in a tie.
  void restore(T* d, Index i) const {
    const T* panel = y + i / WIDTH<T> * WIDTH<T> * q + i % WIDTH<T>;
    if (a.guesses)
      for (Index c = 0; c < q; c++) own[c] = panel[c * WIDTH<T>];
    else d[Index(first[i]) * rows + i] = -T(INFINITE);
  }
  // Return the product of the j-th centre with that row along the directions.
  T product(const T* d, Index i, Index j) const {
    if (!a.guesses) return d[j * rows + i];
    const T* const row[1] = {own};
    T found[1];
    dots<T, 1>(row, factors + j * q, q, found);
    return found[0];
  }
  template <class Search> INLINE void compare(Search& s, Index j, T norm, const int32_t* some, Index n) {
    const T* row[4];
    T found[4];
    for (Index at = 0; at < 4; at++) row[at] = s.z + some[at < n ? at : 0] * p;
    dots<T, 4>(row, s.factors + j * p, p, found);
    for (Index at = 0; at < n; at++) {
      const Index i = some[at];
      const T x = found[at] + norm;
      if (s.nearby.size) s.nearby.insert(i, x, j);
      if (x < s.smallest[i]) {
        s.second[i] = s.smallest[i] < s.second[i] ? s.smallest[i] : s.second[i];
        s.smallest[i] = x, s.nearest[i] = T(j);
        limits[i] = limit_of(x, s.norms[i]);
      } else if (x < s.second[i]) s.second[i] = x;
    }
  }
};

}  // namespace

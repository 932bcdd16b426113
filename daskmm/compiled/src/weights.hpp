// Weights of a soft step: ratios r = d/m of a row's distances to its smallest one become r^(s−1).
// With AVX-512, table look-ups in registers replace the division and half of the series: without
// them, soft steps with few clusters take 12 to 17 % longer.
#pragma once
#include "logarithms.hpp"

namespace {

constexpr int GROUP = 3;  // vectors of rows that are processed together

// Numbers of each row of a tile; `total` and `tied` are Σ r^s over all centres and over ties.
template <class T> struct RowNumbers {
  T *smallest, *inverse, *tie, *total, *tied;
};
// Further arguments of `weigh_all`: s − 1, the exponent up to which weights are 0, and the array
// that is read next, which is prefetched.
template <class T> struct Weighing {
  T power, lowest;
  const T* later;
  Index n_later;
};

#if HAVE_AVX512
INLINE Vector<float> exponents(Vector<float> x) { return (Vector<float>)_mm512_getexp_ps((__m512)x); }
INLINE Vector<double> exponents(Vector<double> x) { return (Vector<double>)_mm512_getexp_pd((__m512d)x); }
INLINE Vector<float> looked_up(const Vector<float>* table, Bits<float> at) {
  return (Vector<float>)_mm512_permutexvar_ps((__m512i)at, (__m512)table[0]);
}
INLINE Vector<double> looked_up(const Vector<double>* table, Bits<double> at) {
  return (Vector<double>)_mm512_permutex2var_pd((__m512d)table[0], (__m512i)at, (__m512d)table[1]);
}

// Series of log2(1 + z)/z for |z| ≤ 1/16 and of 2^f for |f| ≤ 1/32.
template <class T> struct Series;
template <> struct Series<double> {
  static constexpr double log2[] = {1.4426950408889634,  -0.7213475204445915, 0.48089834696461947,
                                    -0.3606737594852623, 0.2885389952013436,  -0.24045038723092318,
                                    0.206128654503769,   -0.179879890610203,  0.14199217212140325};
  static constexpr double exp2[] = {0.6931471805599457,   0.24022650695910094,   0.05550410865663929,
                                    0.009618129106131825, 0.0013333781576905601, 0.00015403788510250262};
};
template <> struct Series<float> {
  static constexpr float log2[] = {1.442695f, -0.7213476f, 0.48091874f, -0.36076555f, 0.27108726f};
  static constexpr float exp2[] = {0.6931472f, 0.24023356f, 0.055505738f};
};
// Tables by the first four bits of a mantissa: its reciprocal in 8 bits, and −log2 of this.
constexpr double RECIPROCALS[16] = {256, 234, 221, 210, 200, 191, 182, 174,
                                    167, 161, 155, 149, 144, 139, 134, 130};  // these are divided by 256
constexpr double LOGARITHMS[16] = {
    0.00000000000000000, 0.12963528041659547, 0.21209744060856844, 0.28575448233387735,
    0.35614381022527530, 0.42257117196425130, 0.49220535980130375, 0.55705650415127170,
    0.61629570752594780, 0.66908312188538300, 0.72387559472576250, 0.78083147953783840,
    0.83007499855768760, 0.88105892727649260, 0.93391080954222760, 0.97763218697154550};
// 2^(i/16)
constexpr double ROOTS[16] = {
    1.00000000000000000, 1.04427378242741380, 1.09050773266525770, 1.13878863475669160,
    1.18920711500272100, 1.24185781207348400, 1.29683955465100960, 1.35425554693689270,
    1.41421356237309510, 1.47682614593949930, 1.54221082540794070, 1.61049033194925430,
    1.68179283050742900, 1.75625216037329950, 1.83400808640934240, 1.91520656139714740};

// The tables in registers; logarithms come multiplied by the power.
template <class T> struct Tables {
  static constexpr int SETS = 16 / LENGTH<T>, N_LOG = sizeof(Series<T>::log2) / sizeof(T);
  static constexpr int N_EXP = sizeof(Series<T>::exp2) / sizeof(T), UNUSED = Number<T>::mantissa - 4;
  Vector<T> reciprocals[SETS], logarithms[SETS], roots[SETS], log2[N_LOG];
  explicit Tables(T power) {
    using Unsigned = typename Number<T>::Unsigned;
    for (int i = 0; i < 16; i++) {
      const int set = i / LENGTH<T>, lane = i % LENGTH<T>;
      reciprocals[set][lane] = T(RECIPROCALS[i] / 256.0);
      logarithms[set][lane] = power * T(LOGARITHMS[i]);
      // `weigh_all` adds i to these bits again.
      T root = T(ROOTS[i]);
      Unsigned bits;
      __builtin_memcpy(&bits, &root, sizeof(T));
      bits -= Unsigned(i) << UNUSED;
      __builtin_memcpy(&root, &bits, sizeof(T));
      roots[set][lane] = root;
    }
    for (int c = 0; c < N_LOG; c++) log2[c] = everywhere(T(power * Series<T>::log2[c]));
  }
};

// Replace all distances of a tile (centre, row) by weights. Two centres × three vectors are
// processed together, since each waits for its own results.
template <class T>
void weigh_all(T* d, Index tile, Index k, Index b, const RowNumbers<T>& of, const Weighing<T>& how) {
  using V = Vector<T>;
  using Table = Tables<T>;
  using Unsigned = typename Number<T>::Unsigned;
  constexpr int ALL = 2 * GROUP;
  const Table tables(how.power);
  const V one = everywhere(T(1)), zero = V{}, power = everywhere(how.power);
  const V lowest = everywhere(how.lowest), near = everywhere(T(1.0625));
  const V round = everywhere(T(3) * T(uint64_t(1) << (Number<T>::mantissa - 5)));  // rounds to 1/16
  const Bits<T> of_one = (Bits<T>)one, fraction = Bits<T>{} + ((Unsigned(1) << Number<T>::mantissa) - 1);
  const Index n_groups = (b + GROUP * LENGTH<T> - 1) / (GROUP * LENGTH<T>);
  const Index n_turns = (k + 1) / 2 * n_groups;
  // Prefetched cache lines: steps take 3 to 8 % longer without, and 4 to 9 % with more than 8 at a
  // time.
  const Index wanted = (how.n_later * Index(sizeof(T)) + 32 * n_turns) / (64 * n_turns);
  const Index n_lines = wanted < 8 ? wanted : 8;
  const char* line = (const char*)how.later;
  for (Index j = 0; j < k; j += 2)
    for (Index g = 0; g < n_groups; g++) {
      for (Index q = 0; q < n_lines; q++, line += 64) __builtin_prefetch(line, 0, 2);
      const Index first = g * GROUP * LENGTH<T>;
      T* at[ALL];
      V e[ALL], ratio[ALL], z[ALL], y[ALL], x[ALL], shifted[ALL], series[ALL];
      Bits<T> place[ALL];
      auto row = [&](int v) { return first + v % GROUP * LENGTH<T>; };
      for (int v = 0; v < ALL; v++) at[v] = d + (j + v / GROUP) * tile + row(v);
      for (int v = 0; v < ALL; v++)
        e[v] = (load(at[v]) - load(of.smallest + row(v))) * load(of.inverse + row(v));
      // e is NaN if all distances are 0, or all are ∞.
      for (int v = 0; v < ALL; v++) e[v] = e[v] > zero ? e[v] : zero;
      for (int v = 0; v < ALL; v++) ratio[v] = e[v] + one;
      // y = (s − 1) log2 r from the exponent, the table, and the series of what is left.
      for (int v = 0; v < ALL; v++) place[v] = (Bits<T>)ratio[v] >> Table::UNUSED;
      for (int v = 0; v < ALL; v++)
        z[v] = (V)(((Bits<T>)ratio[v] & fraction) | of_one) * looked_up(tables.reciprocals, place[v]) - one;
      for (int v = 0; v < ALL; v++) z[v] = ratio[v] < near ? e[v] : z[v];
      for (int v = 0; v < ALL; v++)
        y[v] = exponents(ratio[v]) * power + looked_up(tables.logarithms, place[v]);
      for (int v = 0; v < ALL; v++) series[v] = tables.log2[Table::N_LOG - 1];
      for (int c = Table::N_LOG - 2; c >= 0; c--)
        for (int v = 0; v < ALL; v++) series[v] = z[v] * series[v] + tables.log2[c];
      for (int v = 0; v < ALL; v++) y[v] = z[v] * series[v] + y[v];
      // 2^y; the bits would be arbitrary below the normal numbers.
      for (int v = 0; v < ALL; v++) x[v] = y[v] > lowest ? y[v] : lowest;
      for (int v = 0; v < ALL; v++) shifted[v] = x[v] + round;
      for (int v = 0; v < ALL; v++) z[v] = x[v] - (shifted[v] - round);
      for (int v = 0; v < ALL; v++)
        x[v] = (V)((Bits<T>)looked_up(tables.roots, (Bits<T>)shifted[v]) +
                   ((Bits<T>)shifted[v] << Table::UNUSED));
      for (int v = 0; v < ALL; v++) series[v] = everywhere(Series<T>::exp2[Table::N_EXP - 1]);
      for (int c = Table::N_EXP - 2; c >= 0; c--)
        for (int v = 0; v < ALL; v++) series[v] = z[v] * series[v] + Series<T>::exp2[c];
      for (int v = 0; v < ALL; v++) x[v] = y[v] > lowest ? (z[v] * x[v]) * series[v] + x[v] : zero;
      for (int v = 0; v < ALL; v++) store(at[v], x[v]);
      for (int v = 0; v < ALL; v++) x[v] = y[v] > lowest ? x[v] * ratio[v] : zero;
      for (int v = 0; v < GROUP; v++) {
        T *total = of.total + row(v), *tied = of.tied + row(v);
        const V tie = load(of.tie + row(v));
        V sums = load(tied);
        store(total, load(total) + (x[v] + x[v + GROUP]));
        sums = e[v] <= tie ? sums + x[v] : sums;
        store(tied, e[v + GROUP] <= tie ? sums + x[v + GROUP] : sums);
      }
    }
}

INLINE int compress(Vector<float>& x, Vector<float>& y, Flags<float> held) {
  const __mmask16 mask = _mm512_movepi32_mask((__m512i)held);
  x = (Vector<float>)_mm512_maskz_compress_ps(mask, (__m512)x);
  y = (Vector<float>)_mm512_maskz_compress_ps(mask, (__m512)y);
  return __builtin_popcount(mask);
}
INLINE int compress(Vector<double>& x, Vector<double>& y, Flags<double> held) {
  const __mmask8 mask = _mm512_movepi64_mask((__m512i)held);
  x = (Vector<double>)_mm512_maskz_compress_pd(mask, (__m512d)x);
  y = (Vector<double>)_mm512_maskz_compress_pd(mask, (__m512d)y);
  return __builtin_popcount(mask);
}
#else
template <class T>
void weigh_all(T* d, Index tile, Index k, Index b, const RowNumbers<T>& of, const Weighing<T>& how) {
  using V = Vector<T>;
  const V one = everywhere(T(1)), zero = V{}, lowest = everywhere(how.lowest);
  for (Index j = 0; j < k; j += 2)
    for (Index i = 0; i < b; i += LENGTH<T>) {
      T* at[2] = {d + j * tile + i, d + (j + 1) * tile + i};
      V e[2], y[2], x[2];
      const V smallest = load(of.smallest + i), inverse = load(of.inverse + i), tie = load(of.tie + i);
      for (int v = 0; v < 2; v++) e[v] = (load(at[v]) - smallest) * inverse;
      // e is NaN if all distances are 0, or all are ∞.
      for (int v = 0; v < 2; v++) e[v] = e[v] > zero ? e[v] : zero;
      for (int v = 0; v < 2; v++) y[v] = how.power * log2_1p<T>(e[v]);
      for (int v = 0; v < 2; v++) x[v] = exp2<T>(y[v] > lowest ? y[v] : lowest);
      for (int v = 0; v < 2; v++) x[v] = y[v] > lowest ? x[v] : zero;
      for (int v = 0; v < 2; v++) store(at[v], x[v]);
      for (int v = 0; v < 2; v++) x[v] = y[v] > lowest ? x[v] * (one + e[v]) : zero;
      store(of.total + i, load(of.total + i) + (x[0] + x[1]));
      V tied = load(of.tied + i);
      tied += e[0] <= tie ? x[0] : zero;
      tied += e[1] <= tie ? x[1] : zero;
      store(of.tied + i, tied);
    }
}
#endif

// Weights that are not negligible, centre by centre: those of centre j go from firsts[j] to
// firsts[j + 1]. Row numbers are stored as T, like the vectors that they come from.
template <class T> struct Listed {
  int64_t* firsts;
  T *rows, *excess, *phi;
  Index most;
};
// A tile lists its weights if fewer than 1/LISTED of all count. If more count, it computes all
// weights, and so do the other tiles of its group of RETRIED tiles. So blocks that are read in
// parts of whole groups give the same bits (dispatch.py).
constexpr Index LISTED = 8, RETRIED = 8;

// List one centre's rows with d ≤ limit · smallest; return the new end of the list.
template <class T> INLINE Index list_rows(const T* d, T limit, const RowNumbers<T>& of, Index b,
                                          const Listed<T>& list, Index end) {
  for_vectors<T>(b, [&](Index i, int n_lanes) {
    const Vector<T> x = load(d + i), smallest = load(of.smallest + i);
    const Flags<T> held = counted<T>(~(x > smallest * limit), n_lanes);  // NaN is listed
    Vector<T> excess = (x - smallest) * load(of.inverse + i);
    excess = excess > Vector<T>{} ? excess : Vector<T>{};
#if HAVE_AVX512
    Vector<T> rows = lane_numbers<T>() + T(i);
    const int found = compress(rows, excess, held);
    store(list.rows + end, rows);
    store(list.excess + end, excess);
    end += found;
#else
    if (count<T>(held) == 0) return;  // in most vectors, all weights are negligible
    for (int lane = 0; lane < n_lanes; lane++) {
      list.rows[end] = T(i + lane);
      list.excess[end] = excess[lane];
      end -= held[lane];
    }
#endif
  });
  return end;
}
// Return how many weights were listed, −1 if they are too many.
template <class T> Index list_weights(const T* d, Index tile, Index k, Index b, const T* limits,
                                      const RowNumbers<T>& of, const Listed<T>& list) {
  Index end = 0;
  for (Index j = 0; j < k; j++) {
    list.firsts[j] = end;
    end = list_rows(d + j * tile, limits[j], of, b, list, end);
    if (end > list.most) return -1;
  }
  return list.firsts[k] = end;
}
// Compute the listed r^(s−1), and add up r^s of each row.
template <class T> void weigh_listed(const Listed<T>& list, Index n, T power, const RowNumbers<T>& of) {
  for_vectors<T>(
      n, [&](Index c, int) { store(list.phi + c, exp2<T>(power * log2_1p<T>(load(list.excess + c)))); });
  for (Index c = 0; c < n; c++) {
    const Index i = Index(list.rows[c]);
    const T u = list.phi[c] * (T(1) + list.excess[c]);
    of.total[i] += u;
    if (list.excess[c] <= of.tie[i]) of.tied[i] += u;
  }
}
// Multiply the listed weights by the rows' factors, and add up by centre and by row (`mass`).
template <class T> void add_listed(const Listed<T>& list, const T* factor, const T* z, Index p, Index k,
                                   double* n_j, double* sums, T* mass, Index tile) {
  memset(mass, 0, tile * sizeof(T));
  for (Index j = 0; j < k; j++)
    for (Index c = list.firsts[j]; c < list.firsts[j + 1]; c++) {
      const Index i = Index(list.rows[c]);
      const T value = list.phi[c] * factor[i];
      const double v = double(value);
      const T* __restrict row = z + i * p;
      double* __restrict own = sums + j * p;
      mass[i] += value;
      n_j[j] += v;
      for (Index f = 0; f < p; f++) own[f] += v * double(row[f]);
    }
}

}  // namespace

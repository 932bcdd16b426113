// Divergences of numbers and rows: squared Euclidean, I-divergence, Itakura–Saito, logistic.
#pragma once
#include "entry.hpp"
#include "logarithms.hpp"

namespace {

enum { SQUARED = 0, INFORMATION = 1, ITAKURA_SAITO = 2, LOGISTIC = 3 };
// t − log(1 + t) = t q − 2 q³ Σ_i q^(2i) / (2i + 3) with q = t/(2 + t), for |q| below this.
constexpr double NEAR = 0.1;

// Σ_i u^i / (2i + 3), u < .0295, to a relative error of 4.6e-16: log((1 + q)/(1 − q)) = 2q + 2q³
// series(q²). For numbers and vectors.
template <class V> INLINE V series(V u) {
  const V u2 = u * u;
  const V low =
      (0.3333333333333335 + 0.19999999999949558 * u) + u2 * (0.14285714313066922 + 0.11111105555665937 * u);
  return low + (u2 * u2) * ((0.09091445347844856 + 0.07665836588539468 * u) + u2 * 0.0730850468457676);
}
// x log(x/θ) − x + θ
inline double information(double x, double theta) {
  if (x == 0.0) return theta;
  const double difference = theta - x, q = difference / (theta + x);
  if (__builtin_fabs(q) < NEAR) return q * (difference - 2.0 * x * q * q * series(q * q));
  return theta > 0.0 ? difference + x * __builtin_log(x / theta) : INFINITE;
}
// x/θ − log(x/θ) − 1
inline double itakura_saito(double x, double theta) {
  const double difference = x - theta, q = difference / (theta + x), t = difference / theta;
  if (__builtin_fabs(q) < NEAR) return q * (t - 2.0 * q * q * series(q * q));
  return x > 0.0 ? t - __builtin_log(x / theta) : INFINITE;
}
// δ(x, θ) of the divergence with this code.
inline double element(Index code, double x, double theta) {
  if (code <= SQUARED) return (x - theta) * (x - theta);
  if (code == INFORMATION) return information(x, theta);
  if (code == ITAKURA_SAITO) return itakura_saito(x, theta);
  return information(x, theta) + information(1.0 - x, 1.0 - theta);
}

// ---- The divergences of rows from a reference --------------------------------------------------

// Values outside of the domain have terms that are no numbers, so that the sums of a step show them.
constexpr double NOT_A_NUMBER = __builtin_nan("");

using Doubles = Vector<double>;
// r − 1, n, q and c with r = x/θ, log r = n log 2 + 2 q (1 + c); n is 0 if r is within a factor √2
// of 1, and r − 1 is exact to rounding there.
struct Ratio {
  Doubles ratio, excess, exponent, q, c;
};
INLINE Ratio ratio_of(Doubles x, Doubles theta, Doubles inverse) {
  const Doubles ratio = x * inverse, excess = (x - theta) * inverse;
  const Split<double> split = split_exponent<double>(ratio);
  const Doubles f = split.exponent == 0.0 ? excess : split.fraction;
  const Doubles q = f / (2.0 + f);
  return {ratio, excess, split.exponent, q, q * q * series(q * q)};
}
INLINE Doubles information_of(Doubles x, Doubles theta, Doubles inverse) {
  const Ratio r = ratio_of(x, theta, inverse);
  const Doubles near = r.q * (r.excess + 2.0 * r.ratio * r.c);
  const Doubles far = r.ratio * (r.exponent * LN_2 + 2.0 * r.q * (1.0 + r.c)) - r.excess;
  const Doubles found = theta * (r.exponent == 0.0 ? near : far);
  return x > Doubles{} ? found : x < Doubles{} ? everywhere(NOT_A_NUMBER) : theta;
}
INLINE Doubles itakura_saito_of(Doubles x, Doubles theta, Doubles inverse) {
  const Ratio r = ratio_of(x, theta, inverse);
  const Doubles near = r.q * (r.excess - 2.0 * r.c);
  const Doubles far = r.excess - (r.exponent * LN_2 + 2.0 * r.q * (1.0 + r.c));
  const Doubles found = r.exponent == 0.0 ? near : far;
  return x > Doubles{} ? found : everywhere(NOT_A_NUMBER);
}
// The logistic divergence, given log2 θ and log2(1 − θ). It is less exact near θ; log 0 is finite here.
INLINE Doubles logistic_of(Doubles x, Doubles log_theta, Doubles log_rest) {
  const Doubles rest = 1.0 - x;
  const Split<double> own = split_exponent<double>(x), other = split_exponent<double>(rest);
  const Doubles g = 2.0 + own.fraction, h = 2.0 + other.fraction;
  const Doubles inverse = 1.0 / (g * h);  // one division for both logarithms
  const Doubles log_x = own.exponent + log2_series(own.fraction * h * inverse);
  const Doubles log_of_rest = other.exponent + log2_series(other.fraction * g * inverse);
  const Doubles found = LN_2 * (x * (log_x - log_theta) + rest * (log_of_rest - log_rest));
  return (x >= Doubles{}) & (rest >= Doubles{}) ? found : everywhere(NOT_A_NUMBER);
}

// Numbers of either type as doubles; the last vector may be incomplete.
template <class R> INLINE Doubles load_doubles(const R* from, int n_lanes) {
  VectorOf<R, LENGTH<double>> x{};
  if (n_lanes == LENGTH<double>) __builtin_memcpy(&x, from, sizeof(x));
  else
    for (int lane = 0; lane < n_lanes; lane++) x[lane] = from[lane];
  return __builtin_convertvector(x, Doubles);
}
template <class R> struct RowTerms : Entry {
  const Terms& a;
  const Index p = a.p, length = repeated_length(p);
  double *first, *second, *elements;

  explicit RowTerms(const Terms& a) : a(a) {}
  void place(Memory& memory) { memory(length + LENGTH<double>, first, second, elements); }
  void begin() {
    const bool logistic = a.code == LOGISTIC;
    for (Index q = 0; q < length; q++) {
      const double theta = a.reference[q % p];
      first[q] = logistic ? __builtin_log(theta) / LN_2 : theta;
      second[q] = logistic ? __builtin_log1p(-theta) / LN_2 : 1.0 / theta;
    }
  }
  template <class Divergence> void fill(const R* x, Index n, Divergence divergence) {
    for_vectors<double>(n, [&](Index q, int n_lanes) {
      const Doubles value = load_doubles(x + q, n_lanes);
      const Doubles found = divergence(value, load(first + q), load(second + q));
      store(elements + q, value == value ? found : Doubles{});
    });
  }
  bool add(Index start, Index b) {
    const R* x = (const R*)a.rows + start * p;
    if (a.code == INFORMATION) fill(x, b * p, information_of);
    else if (a.code == ITAKURA_SAITO) fill(x, b * p, itakura_saito_of);
    else fill(x, b * p, logistic_of);
    for (Index i = 0; i < b; i++) {
      double total = sum_of_all(elements + i * p, p);
      // If the total is not finite, a ratio has overflowed: a reference inside the domain is at a
      // finite distance from every row.
      if (!__builtin_isfinite(total)) {
        total = 0.0;
        for (Index f = 0; f < p; f++) {
          const double value = double(x[i * p + f]);
          if (value == value) total += element(a.code, value, a.reference[f]);
        }
      }
      a.terms[start + i] = total;
    }
    return true;
  }
};

}  // namespace

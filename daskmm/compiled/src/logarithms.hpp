// Logarithms and exponentials to base 2, a few dozen instructions without branches. Coefficients
// are minimax polynomials of the relative error (Remez' algorithm in 60 digits), summed in pairs
// (Estrin's scheme) because a chain of dependent instructions is slow.
#pragma once
#include "vectors.hpp"

namespace {

// (2/ln 2)·artanh(q), |q| ≤ (√2 − 1)/(√2 + 1): relative errors 1.7e-16 (double), 6.9e-10 (single).
INLINE Vector<double> log2_series(Vector<double> q) {
  const Vector<double> t = q * q, t2 = t * t;
  Vector<double> series =
      (2.885390081777927 + 0.9617966939243245 * t) + t2 * (0.5770780172502946 + 0.4121984014728894 * t);
  series += (t2 * t2) * ((0.32061642585672007 + 0.26144310953335265 * t) + t2 * 0.24292899858294206);
  return q * series;
}
INLINE Vector<float> log2_series(Vector<float> q) {
  const Vector<float> t = q * q;
  return q * ((2.885390079788923f + 0.961798847642647f * t) +
              (t * t) * (0.5767143838971124f + 0.4317358806344565f * t));
}
// 2^f, |f| ≤ ½: relative errors 3.0e-16 (double), 2.6e-9 (single).
INLINE Vector<double> exp2_series(Vector<double> f) {
  const Vector<double> f2 = f * f, f4 = f2 * f2;
  Vector<double> tail =
      (0.6931471805599516 + 0.24022650695910472 * f) + f2 * (0.05550410866434658 + 0.009618129107380713 * f);
  tail += f4 * ((0.0013333558246480736 + 0.00015403530800819307 * f) +
                f2 * (1.5252647747691453e-05 + 1.3215235634268184e-06 * f));
  tail += (f4 * f4) * (1.021050645903462e-07 + 7.111758774287794e-09 * f);
  return 1.0 + f * tail;
}
INLINE Vector<float> exp2_series(Vector<float> f) {
  const Vector<float> f2 = f * f;
  const Vector<float> tail = (0.6931472149680221f + 0.24022652782874862f * f) +
                             f2 * (0.05550310551029842f + 0.009617692975066663f * f) +
                             (f2 * f2) * (0.0013406643892691188f + 0.000155946775080192f * f);
  return 1.0f + f * tail;
}

// Adding this rounds to an integer, which is then in the lowest bits.
template <class T> constexpr T ROUND = T(3) * T(uint64_t(1) << (Number<T>::mantissa - 1));

template <class T> struct Split {
  Vector<T> exponent, fraction;
};
// Split a normal positive number 2^n (1 + f), 1 + f in [√½, √2), into n and f.
template <class T, bool AT_LEAST_ONE = false> INLINE Split<T> split_exponent(Vector<T> x) {
  using Unsigned = typename Number<T>::Unsigned;
  constexpr int shift = Number<T>::mantissa;
#if HAVE_AVX512
  constexpr Unsigned lift = 0;
  using Shifted = Flags<T>;  // these integers have a sign
#else
  // Negative exponents are made positive before the shift: AVX2 cannot shift 64 bits with their
  // sign.
  constexpr Unsigned lift = AT_LEAST_ONE ? 0 : Unsigned(1) << (8 * sizeof(T) - 2);
  using Shifted = Bits<T>;
#endif
  constexpr T root = T(0.70710678118654752), round = ROUND<T>;
  Unsigned root_bits, round_bits;
  __builtin_memcpy(&root_bits, &root, sizeof(T));
  __builtin_memcpy(&round_bits, &round, sizeof(T));
  const Bits<T> bits = (Bits<T>)x, above = bits - root_bits;
  const Bits<T> n = (Bits<T>)((Shifted)(above + lift) >> shift) + (round_bits - (lift >> shift));
  return {(Vector<T>)n - ROUND<T>, (Vector<T>)(bits - (above & ~((Unsigned(1) << shift) - 1))) - T(1)};
}
// log2(1 + e) for e in [0, ∞], exact to rounding also for tiny e; 128 or 1024 at ∞.
template <class T> INLINE Vector<T> log2_1p(Vector<T> e) {
  const Vector<T> ratio = T(1) + e;
  const Split<T> split = split_exponent<T, true>(ratio);
  // Near 1 use e, as 1 + e is rounded.
  const Vector<T> f = ratio < T(1.4142135623730951) ? e : split.fraction;
  return split.exponent + log2_series(f / (T(2) + f));
}
// 2^y for y among the exponents of normal numbers; undefined for others.
template <class T> INLINE Vector<T> exp2(Vector<T> y) {
  const Vector<T> shifted = y + ROUND<T>;
  const Vector<T> series = exp2_series(y - (shifted - ROUND<T>));
  return (Vector<T>)((Bits<T>)series + ((Bits<T>)shifted << Number<T>::mantissa));
}
constexpr double LN_2 = 0.6931471805599453;
// e^x for x ≤ 0; 0 below −708, and for NaN.
INLINE Vector<double> exp_negative(Vector<double> x) {
  const Vector<double> lowest = everywhere(-708.0), held = x > lowest ? x : lowest;
  const Vector<double> shifted = held * 1.4426950408889634 + ROUND<double>, n = shifted - ROUND<double>;
  // ln 2 in two parts: products of the first are exact.
  const Vector<double> rest = (held - n * 0x1.62e42fefa38p-1) - n * 0x1.ef35793c7673p-45;
  const Vector<double> series = exp2_series(rest * 1.4426950408889634);
  const auto bits = (Bits<double>)series + ((Bits<double>)shifted << Number<double>::mantissa);
  return x > lowest ? (Vector<double>)bits : Vector<double>{};
}

}  // namespace

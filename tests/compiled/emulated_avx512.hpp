// What the loops use of AVX-512 beyond the compiler's vectors, lane by lane: the compiler makes two
// or four registers of a vector of 64 bytes, so that code for AVX-512 runs on any processor. This is
// included before all else (`-include`).
#pragma once
#include <stdint.h>

#define DASKMM_EMULATED_AVX512 1

typedef float __m512 __attribute__((vector_size(64)));
typedef double __m512d __attribute__((vector_size(64)));
typedef long long __m512i __attribute__((vector_size(64)));
typedef uint8_t __mmask8;
typedef uint16_t __mmask16;

namespace emulated {

typedef int32_t Integers __attribute__((vector_size(64)));  // of the size of float
#define INLINED static inline __attribute__((always_inline))

// ⌊log2 |x|⌋ as a number; ∞ for ∞, −∞ for 0, NaN for NaN.
INLINED double exponent(double x) {
  if (x != x) return x;
  if (x == 0.0) return -__builtin_inf();
  if (x == __builtin_inf() || x == -__builtin_inf()) return __builtin_inf();
  int found;
  __builtin_frexp(x, &found);
  return found - 1;
}
template <class V> INLINED V exponents(V x) {
  for (unsigned lane = 0; lane < sizeof(V) / sizeof(x[0]); lane++) x[lane] = exponent(x[lane]);
  return x;
}
// The lanes whose bit is set, moved to the front; zeros follow.
template <class V> INLINED V compressed(unsigned mask, V x) {
  V found{};
  for (unsigned lane = 0, place = 0; lane < sizeof(V) / sizeof(x[0]); lane++)
    if (mask >> lane & 1) found[place++] = x[lane];
  return found;
}
template <class V> INLINED unsigned signs(V x) {
  unsigned mask = 0;
  for (unsigned lane = 0; lane < sizeof(V) / sizeof(x[0]); lane++) mask |= unsigned(x[lane] < 0) << lane;
  return mask;
}

}  // namespace emulated

INLINED __m512 _mm512_getexp_ps(__m512 x) { return emulated::exponents(x); }
INLINED __m512d _mm512_getexp_pd(__m512d x) { return emulated::exponents(x); }
INLINED __m512 _mm512_maskz_compress_ps(__mmask16 mask, __m512 x) { return emulated::compressed(mask, x); }
INLINED __m512d _mm512_maskz_compress_pd(__mmask8 mask, __m512d x) { return emulated::compressed(mask, x); }
INLINED __mmask16 _mm512_movepi32_mask(__m512i x) { return emulated::signs((emulated::Integers)x); }
INLINED __mmask8 _mm512_movepi64_mask(__m512i x) { return emulated::signs(x); }
INLINED __m512 _mm512_permutexvar_ps(__m512i at, __m512 table) {
  __m512 found;
  const emulated::Integers places = (emulated::Integers)at & 15;
  for (int lane = 0; lane < 16; lane++) found[lane] = table[places[lane]];
  return found;
}
INLINED __m512d _mm512_permutex2var_pd(__m512d table, __m512i at, __m512d second) {
  __m512d found;
  for (int lane = 0; lane < 8; lane++) {
    const int place = int(at[lane] & 15);
    found[lane] = place < 8 ? table[place] : second[place - 8];
  }
  return found;
}

// Products of rows and centres rounded to bfloat16, ẑ and θ̂, with sums in float32. The tiles of AMX
// compute them many times as fast as AVX-512 computes products of float32. By Cauchy–Schwarz,
// −2 zᵀθ ≥ −2 ẑᵀθ̂ − 2 ‖z − ẑ‖ ‖θ‖ − 2 ‖ẑ‖ ‖θ − θ̂‖.
// Rows and centres are rounded about the mean of the centres, which makes them shorter.
#pragma once
#include "tile.hpp"

namespace {

// Two features, q and q + n_pairs, share 32 bits, which arrays of float hold as they are.
constexpr uint32_t UPPER = 0xffff0000, EXPONENT = 0x7f800000;
constexpr Index pairs_of(Index p) { return rounded_up((p + 1) / 2, TILE_SIDE); }
INLINE Vector<float> first_of(Bits<float> pair) { return (Vector<float>)(pair << 16); }
INLINE Vector<float> second_of(Bits<float> pair) { return (Vector<float>)(pair & UPPER); }
INLINE Bits<float> load_pairs(const float* from) { return (Bits<float>)load(from); }

// Squared norms of a vector, of it about the offset, and of what remains and is lost by rounding that.
struct RoundedNorms {
  float all, shifted, kept, lost;
};
// Round x − offset, both of 2 n_pairs features, to the nearest, and flush subnormal numbers.
INLINE RoundedNorms round_pairs(const float* x, const float* offset, Index n_pairs, float* pairs) {
  Vector<float> all{}, shifted{}, kept{}, lost{};
  for (Index q = 0; q < n_pairs; q += LENGTH<float>) {
    Bits<float> halves[2];
    UNROLLED for (int half = 0; half < 2; half++) {
      const Index at = q + half * n_pairs;
      const Vector<float> given = load(x + at), z = given - load(offset + at);
      Bits<float> bits = (Bits<float>)z;
      bits = (bits + 0x7fff + (bits >> 16 & 1)) & UPPER;
      bits &= (Bits<float>)((bits & EXPONENT) != 0);
      const Vector<float> rounded = (Vector<float>)bits, rest = z - rounded;
      all += given * given, shifted += z * z, kept += rounded * rounded, lost += rest * rest;
      halves[half] = bits;
    }
    store(pairs + q, (Vector<float>)(halves[0] >> 16 | halves[1]));
  }
  return {sum_of<float>(all), sum_of<float>(shifted), sum_of<float>(kept), sum_of<float>(lost)};
}

// Return the place of TILE_SIDE contiguous pairs of the j-th centre, from the q-th on.
INLINE Index place_of_pairs(Index j, Index q, Index n_pairs) {
  return (j / TILE_SIDE * n_pairs + q) * TILE_SIDE + j % TILE_SIDE * TILE_SIDE;
}
// Write the products of one centre with a row.
INLINE float product_of_pairs(const float* centers, Index j, const float* row, Index n_pairs) {
  Vector<float> sum{};
  for (Index q = 0; q < n_pairs; q += LENGTH<float>) {
    const Index within = q % TILE_SIDE;
    const Bits<float> x = load_pairs(row + q);
    const Bits<float> y = load_pairs(centers + place_of_pairs(j, q - within, n_pairs) + within);
    sum += first_of(x) * first_of(y) + second_of(x) * second_of(y);
  }
  return sum_of<float>(sum);
}
// Write the products of whole groups of centres with the b rows of panels to lines (centre, row), as
// `tile_products` does.
inline void pair_products(const float* centers, Index n_groups, const float* panels, Index n_pairs, Index b,
                          float* lines, Index rows) {
  for (Index i = 0; i < b; i += WIDTH<float>)
    for (Index j = 0; j < n_groups * TILE_SIDE; j++) {
      Vector<float> sums[GROUP] = {};
      for (Index q = 0; q < n_pairs; q++) {
        const Index within = q % TILE_SIDE;
        const float pair = centers[place_of_pairs(j, q - within, n_pairs) + within];
        uint32_t bits;
        __builtin_memcpy(&bits, &pair, sizeof bits);
        const Bits<float> y = bits - Bits<float>{};
        for (int v = 0; v < GROUP; v++) {
          const Bits<float> x = load_pairs(panels + i * n_pairs + q * WIDTH<float> + v * LENGTH<float>);
          sums[v] += first_of(x) * first_of(y) + second_of(x) * second_of(y);
        }
      }
      for (int v = 0; v < GROUP; v++) store(lines + j * rows + i + v * LENGTH<float>, sums[v]);
    }
}

// Products of rounded rows and centres, and bounds of what rounding loses.
struct Rounded {
  static constexpr bool NEARLY_EXACT = true;
  // The usual share of a number that rounding loses.
  static constexpr double LOST = 1.0 / 600;
  const Step& a;
  const Index p = a.p, k = a.k, n_pairs = pairs_of(p), rows = a.tile;
  const double cushion = 1.0 + 1e-7 * double(p + 1000);  // norms are rounded
  float *centers, *norms, *rests;                        // centres, about the offset
  float *panels, *remainders, *shifts;                   // rows
  float *offset, *of_factors;                            // of rows, and of factors −2 θ
  float *own, *some;  // a row before and after it is rounded; rows before they are transposed

  explicit Rounded(const Step& a) : a(a) {}
  void place(Memory& memory) {
    memory(rounded_up(k, TILE_SIDE) * n_pairs, centers), memory(k + k % 2, norms, rests);
    memory(rows * n_pairs, panels), memory(rows, remainders, shifts);
    memory(2 * n_pairs, offset, of_factors, own), memory((WIDTH<float> + SIDE<float>)*n_pairs, some);
  }
  void begin() {
    const float* factors = (const float*)a.factors;
    for (Index j = 0; j < k; j++)
      for (Index f = 0; f < p; f++) of_factors[f] += factors[j * p + f] / float(k);
    for (Index f = 0; f < p; f++) offset[f] = -0.5f * of_factors[f];
    for (Index j = 0; j < k; j++) {
      const RoundedNorms found = rounded(factors + j * p, of_factors, some);
      for (Index q = 0; q < n_pairs; q += TILE_SIDE)
        memcpy(centers + place_of_pairs(j, q, n_pairs), some + q, TILE_SIDE * sizeof(float));
      norms[j] = 0.25f * found.shifted;
      // A sum of products errs by at most one unit in the last place of the norms per summand.
      const double sums = 1.2e-7 * double(2 * n_pairs + 8) * __builtin_sqrt(double(found.kept));
      const double both = LOST * LOST * found.shifted + found.lost;
      rests[j] = float(cushion * (__builtin_sqrt(both) + sums));
    }
    if (k % 2) norms[k] = float(INFINITE);
  }
  INLINE RoundedNorms rounded(const float* x, const float* about, float* pairs) {
    memcpy(own, x, size_t(p) * sizeof(float));
    return round_pairs(own, about, n_pairs, pairs);
  }
  // Write panels of the rounded rows, and the squared norms of the rows. The error
  // ‖z − ẑ‖ ‖θ‖ + ‖ẑ‖ ‖θ − θ̂‖ is at most the product of two lengths, √(‖z − ẑ‖²/c² + ‖ẑ‖²) and
  // √(c² ‖θ‖² + ‖θ − θ̂‖²); they are parallel if c is the share that is lost.
  template <class Search> void prepare(const Search& s, float slack, Index b) {
    for (Index i = 0; i < b; i++) {
      const Index within = i % WIDTH<float>, start = i - within;
      const RoundedNorms found = rounded(s.z + i * p, offset, some + within * n_pairs);
      s.norms[i] = found.all;
      remainders[i] = float(cushion * __builtin_sqrt(found.lost / (LOST * LOST) + found.kept));
      // The last summand exceeds what underflows.
      shifts[i] = found.all - found.shifted + 3.0f * slack * found.shifted + 1e-30f;
      if (i + 1 == b || within + 1 == WIDTH<float>)
        transpose(some, within + 1, n_pairs, panels + start * n_pairs, n_pairs);
    }
  }
  float shift(Index i) const { return shifts[i]; }
  // Write the products of some centres with all rows.
  void products(Index from, Index end, float* lines, Index b) const {
    const float* some = centers + from * n_pairs;
    const Index n_groups = (end - from + TILE_SIDE - 1) / TILE_SIDE;
#if HAVE_TILES
    if (a.rounded == IN_TILES && WIDTH<float> == 3 * TILE_SIDE)
      return tile_products(some, n_groups, panels, n_pairs, b, lines, rows);
#endif
    pair_products(some, n_groups, panels, n_pairs, b, lines, rows);
  }
  void choose(Index i) {
    const float* panel = panels + i / WIDTH<float> * WIDTH<float> * n_pairs + i % WIDTH<float>;
    for (Index q = 0; q < n_pairs; q++) memcpy(own + q, panel + q * WIDTH<float>, sizeof(float));
  }
  // Return the product of the j-th centre with the chosen row.
  float product(Index j) const { return product_of_pairs(centers, j, own, n_pairs); }
};

}  // namespace

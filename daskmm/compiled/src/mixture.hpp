// One E- and M-step of Gaussian components over a block. Densities are computed with a row in each
// lane, from transposed rows. Sums are computed with a feature in each lane, from the rows whose
// responsibilities count: where components are far apart, each row enters the sums of one.
#pragma once
#include "products.hpp"

namespace {

template <class R> struct MixtureSums : Entry {
  using V = Vector<double>;
  static constexpr Index L = LENGTH<double>, PANEL = WIDTH<double>, LINES = 4;
  static constexpr Index LISTED_NUMBERS = 3 << 10;  // the listed numbers stay in the first cache

  const Mixture& a;
  const Index p = a.p, k = a.k, tile = a.tile;
  const Index width = rounded_up(p, L > LINES ? L : LINES);  // whole vectors and whole blocks of lines
  const Index most = LISTED_NUMBERS > 16 * width ? LISTED_NUMBERS / width : 16;  // rows written at a time
  const bool shared = a.n_factors == 1;  // whether there is one factor for all components
  Index factor_size = 0;
  double *z, *panels;                  // rows, shifted by the origin; the same, transposed
  double* d;                           // (component, row): log densities, then responsibilities
  double* pull;                        // (component, row): weights u of t distributions
  double *v, *least, *density, *best;  // per row; `best` is the most probable component
  double *origin, *means, *factors;    // factors come in blocks of four columns
  double *whitened, *apart;            // means times a shared factor, and a panel's differences
  double *weights, *roots, *listed;    // weights of the rows that a component's sums take
  double *sums, *squares, *scatters;   // sums of one component, and scatters of all
  int32_t* rows;

  explicit MixtureSums(const Mixture& a) : a(a) {
    for (Index c = 0; c < p; c += LINES) factor_size += LINES * rows_of_factor(c);
  }
  // Rows down to the diagonal of a block of columns.
  Index rows_of_factor(Index c) const { return c + LINES < p ? c + LINES : p; }

  void place(Memory& memory) {
    memory((tile + 16) * width, z), memory(tile * width, panels), memory(k * tile, d);
    memory(a.degrees ? k * tile : 0, pull);
    memory(tile, v, least, density, best), memory(width, origin), memory((k + 1) * width, means);
    memory(a.n_factors * factor_size, factors), memory(shared ? k * width : 0, whitened);
    memory(width * PANEL, apart);
    if (!a.n_j) return;
    memory(tile, weights, roots), memory(tile, rows), memory(width, sums, squares);
    memory(most * width, listed), memory(a.n_factors * width * width, scatters);
  }
  void begin() {
    if (shared)
      for (Index j = 0; j < k; j++)
        for (Index f = 0; f < p; f++) origin[f] += a.means[j * p + f] / double(k);
    for (Index j = 0; j < k; j++)
      for (Index f = 0; f < p; f++) means[j * width + f] = a.means[j * p + f] - origin[f];
    double* to = factors;
    for (Index j = 0; j < a.n_factors; j++)
      for (Index c = 0; c < p; c += LINES)
        for (Index f = 0; f < rows_of_factor(c); f++)
          for (Index l = c; l < c + LINES; l++)
            *to++ = f <= l && l < p ? a.factors[(j * p + f) * p + l] : 0.0;
    if (shared)
      for (Index j = 0; j < k; j++)
        for (Index c = 0; c < p; c++)
          for (Index f = 0; f <= c; f++)
            whitened[j * width + c] += means[j * width + f] * a.factors[f * p + c];
    // Sums continue those of earlier parts of the block, so a block in parts gives the same bits.
    for_triangles([](double& own, double& found) { own = found; });
  }
  // Call `use` for each sum of products of features and its place in the result.
  template <class Use> void for_triangles(Use use) {
    if (!a.scatters) return;
    for (Index j = 0; j < a.n_factors; j++)
      for (Index f = 0; f < p; f++)
        for (Index l = f; l < p; l++)
          use(scatters[(j * width + f) * width + l], a.scatters[(j * p + f) * p + l]);
  }
  void finish() {
    for_triangles([](double& own, double& found) { found = own; });
  }

  void read(Index start, Index b) {
    const R* x = (const R*)a.rows + start * p;
    for (Index i = 0; i < b; i++)
      for (Index f = 0; f < p; f++) z[i * width + f] = double(x[i * p + f]) - origin[f];
    transpose(z, b, width, panels, width);
    copy_weights(a, start, b, v);
    for (Index i = 0; i < b; i++) least[i] = a.negligible * v[i];
  }

  // Call `use` with the products of the rows of a panel and each block of a factor's columns.
  template <class Use> INLINE void multiply_factor(const double* factor, const double* x, Use use) {
    for (Index c = 0; c < p; c += LINES) {
      const Index n = rows_of_factor(c);
      V products[LINES][GROUP] = {};
      add_products<double, LINES, GROUP>(factor, 1, LINES, x, PANEL, n, products);
      factor += n * LINES;
      use(c, products);
    }
  }
  INLINE void whiten(double* panel) {
    multiply_factor(factors, panel, [&](Index c, V(&products)[LINES][GROUP]) {
      UNROLLED for (int l = 0; l < LINES; l++) UNROLLED
        for (int g = 0; g < GROUP; g++) store(apart + (c + l) * PANEL + g * L, products[l][g]);
    });
    memcpy(panel, apart, size_t(width * PANEL) * sizeof(double));
  }
  INLINE void add_whitened(Index j, const double* panel, V (&squares)[GROUP]) {
    const double* mean = means + j * width;
    double* const differences = apart;
    const Index n = p;
    for (Index f = 0; f < n; f++) UNROLLED
      for (int g = 0; g < GROUP; g++)
        store(differences + f * PANEL + g * L, load(panel + f * PANEL + g * L) - mean[f]);
    multiply_factor(factors + j * factor_size, differences, [&](Index, V(&products)[LINES][GROUP]) {
      UNROLLED for (int l = 0; l < LINES; l++) UNROLLED
        for (int g = 0; g < GROUP; g++) squares[g] += products[l][g] * products[l][g];
    });
  }
  INLINE void add_scaled(const double* mean, const double* scale, const double* panel, V (&squares)[GROUP]) {
    for (Index f = 0; f < p; f++) UNROLLED
      for (int g = 0; g < GROUP; g++) {
        V x = load(panel + f * PANEL + g * L) - mean[f];
        if (scale) x *= scale[f];
        squares[g] += x * x;
      }
  }
  // Write the logarithm of each component's share of the density. This is a separate function,
  // since steps take a fifth longer if a larger one leaves the compiler fewer registers.
  NOINLINE void fill_densities(Index b) {
    if (shared)
      for (Index i = 0; i < b; i += PANEL) whiten(panels + i * width);
    for (Index j = 0; j < k; j++)
      for (Index i = 0; i < b; i += PANEL) {
        const double* panel = panels + i * width;
        V squares[GROUP] = {};
        if (a.factors && !shared) add_whitened(j, panel, squares);
        else if (shared) add_scaled(whitened + j * width, nullptr, panel, squares);
        else add_scaled(means + j * width, a.inverse_deviations + j * p, panel, squares);
        UNROLLED for (int g = 0; g < GROUP; g++)
          store(d + j * tile + i + g * L, a.constants[j] - exponent(j, i + g * L, squares[g]));
      }
  }
  // Return minus the logarithm of a density relative to that at the mean, given squared distances.
  INLINE V exponent(Index j, Index i, V squares) {
    if (!a.degrees) return 0.5 * squares;
    const double degrees = a.degrees[j], both = degrees + double(p);
    store(pull + j * tile + i, both / (degrees + squares));
    // The last term is not finite where a distance is not, though the logarithm would be.
    return 0.5 * both * LN_2 * log2_1p<double>(squares / degrees) + (squares - squares);
  }
  // Turn logarithms of densities into responsibilities; return whether all densities are finite.
  NOINLINE bool normalize(Index b) {
    Flags<double> lost{};
    for_vectors<double>(b, [&](Index i, int n_lanes) {
      V largest = load(d + i), place{}, total{};
      for (Index j = 1; j < k; j++) {
        const V x = load(d + j * tile + i);
        place = x > largest ? everywhere(double(j)) : place;
        largest = x > largest ? x : largest;
      }
      for (Index j = 0; j < k; j++) {
        const V share = exp_negative(load(d + j * tile + i) - largest);
        total += share;
        store(d + j * tile + i, share);
      }
      const V found = largest + LN_2 * log2_1p<double>(total - 1.0), inverse = 1.0 / total;
      for (Index j = 0; j < k; j++) store(d + j * tile + i, load(d + j * tile + i) * inverse);
      store(density + i, found), store(best + i, place);
      lost += counted<double>(~(found - found == V{}), n_lanes);
    });
    return count<double>(lost) == 0;
  }
  void write(Index start, Index b) {
    if (a.labels)
      for (Index i = 0; i < b; i++) a.labels[start + i] = int32_t(best[i]);
    if (a.densities) memcpy(a.densities + start, density, size_t(b) * sizeof(double));
    if (a.responsibilities)
      for (Index i = 0; i < b; i++)
        for (Index j = 0; j < k; j++) a.responsibilities[(start + i) * k + j] = d[j * tile + i];
    if (a.total) a.total[0] += dot(v, density, b);
  }

  // List the rows of a component that count, and their weights; return how many there are.
  NOINLINE Index list_rows(Index j, Index b) {
    // These are copies, since the compiler cannot know that writes leave the originals unchanged.
    const double *const own = d + j * tile, *const given = v, *const limits = least;
    double* const to = weights;
    int32_t* const places = rows;
    Index n = 0;
    for (Index i = 0; i < b; i++) {
      const double weight = own[i] * given[i];
      places[n] = int32_t(i), to[n] = weight;
      n += weight > limits[i];
    }
    return n;
  }
  // Add n listed rows to N vectors of a component's sums. Then write the rows, times the roots of
  // their weights, or add their squares to those of the component.
  template <int N, bool WRITE> INLINE void add_rows(const double* mean, Index first, Index n, Index f) {
    const int32_t* const own = rows + first;
    const double *const from = z + f, *const factors = (WRITE ? roots : weights) + first;
    double* const to = listed + f;
    const Index step = width;
    V total[N], square[N], center[N];
    UNROLLED for (int c = 0; c < N; c++) {
      total[c] = load(sums + f + c * L), square[c] = load(squares + f + c * L);
      center[c] = load(mean + f + c * L);
    }
    for (Index q = 0; q < n; q++) {
      const double *const row = from + own[q] * step, factor = factors[q];
      UNROLLED for (int c = 0; c < N; c++) {
        const V x = load(row + c * L) - center[c], weighted = factor * x;
        total[c] += WRITE ? factor * weighted : weighted;
        if (WRITE) store(to + q * step + c * L, weighted);
        else square[c] += weighted * x;
      }
    }
    UNROLLED for (int c = 0; c < N; c++)
      store(sums + f + c * L, total[c]), store(squares + f + c * L, square[c]);
  }
  template <bool WRITE> NOINLINE void add_listed(Index j, Index first, Index n) {
    const double* mean = means + j * width;
    for_features<double>(0, width,
                         [&](Index f, auto abreast) { add_rows<abreast.n, WRITE>(mean, first, n, f); });
  }
  // Add the products of the features of n written rows, on and above the diagonal.
  NOINLINE void add_scatter(Index n, double* scatter) {
    const double* const x = listed;
    const Index step = width;
    for (Index c = 0; c < p; c += LINES)
      for_features<double>(c / L * L, width, [&](Index f, auto abreast) {
        double* to = scatter + c * step + f;
        multiply_panel<double, LINES, abreast.n, true>(x + c, 1, x + f, step, n, to, step, step);
      });
  }
  // Multiply the weights of the listed rows by those that a t distribution gives them.
  NOINLINE void pull_rows(Index j, Index n) {
    double pulls = 0.0, logs = 0.0;
    for (Index q = 0; q < n; q++) {
      const double u = pull[j * tile + rows[q]];
      logs += weights[q] * (__builtin_log(u) - u);
      pulls += weights[q] *= u;
    }
    a.pulls[j] += pulls, a.logs[j] += logs;
  }
  // Sums around the means of the components.
  void add_component(Index j, Index b) {
    const Index n = list_rows(j, b);
    a.n_j[j] += sum_of_all(weights, n);
    if (a.degrees) pull_rows(j, n);
    memset(sums, 0, size_t(width) * sizeof(double)), memset(squares, 0, size_t(width) * sizeof(double));
    if (!a.factors) add_listed<false>(j, 0, n);
    else {
      double* const scatter = scatters + (shared ? 0 : j) * width * width;
      for (Index q = 0; q < n; q++) roots[q] = __builtin_sqrt(weights[q]);
      for (Index first = 0; first < n; first += most) {
        const Index some = most < n - first ? most : n - first;
        add_listed<true>(j, first, some);
        add_scatter(some, scatter);
      }
    }
    for (Index f = 0; f < p; f++) a.sums[j * p + f] += sums[f];
    if (a.squares)
      for (Index f = 0; f < p; f++) a.squares[j * p + f] += squares[f];
  }
  bool add(Index start, Index b) {
    read(start, b);
    fill_densities(b);
    if (!normalize(b)) return false;
    write(start, b);
    for (Index j = 0; j < k && a.n_j; j++) add_component(j, b);
    return true;
  }
};

}  // namespace

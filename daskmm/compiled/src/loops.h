/* The C interface of the loops. `daskmm/compiled/library.py` reads the structures from this file,
   and checks each array against the comment beside it, which begins with the shape, "or NULL" where
   there may be none. Arrays are contiguous in C order, and what is not const is written to.

   R: the type of the rows, T: that of the distances, float32 or float64 as `single_rows` and
   `single` say. I: that of indices, int32 or int64 as `wide` says. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define DASKMM_VERSION 1

/* One block and one set of centres: soft_sums, hard_sums, nearest_centers, nearest_listed,
   known_sums. */
typedef struct {
  int64_t n, p, k;             /* rows, features, centres */
  int64_t tile;                /* rows per tile: whole panels of 48 rows */
  int64_t code;                /* of the distortion, see rows.hpp */
  int64_t single_rows;         /* whether R is float32 */
  int64_t single;              /* whether T is float32 */
  int64_t scaled;              /* whether a scale is not 1 */
  int64_t first_row;           /* position of the first row in the block */
  int64_t n_far;               /* length of the list of the farthest rows */
  int64_t scored;              /* whether a hard step computes the costs from the differences */
  int64_t n_leading;           /* directions of `basis`, whole groups of 8; 0: all features count */
  int64_t rounded;             /* whether products of bfloat16 exclude centres, if T is float32: 2 in
                                  tiles of AMX, 1 without these, 0 none; see rounded.hpp */
  int64_t n_listed;            /* centres listed for each row of `lists` */
  double slack;                /* reach of centres that the distances of a row do not bound */
  double lower_end, upper_end; /* where the domain of the distortion ends */
  double s;                    /* power of a soft step */
  double rounding;             /* error of a product, as a share of the norms */
  double tie;                  /* distances within this share of the smallest one count as tied */
  double cancelled;            /* share of the norms below which a distance has lost its digits */
  double lowest;               /* exponent to base 2 up to which weights are 0 */
  double low, high;            /* smallest distance and largest norm of the regular range of T */
  const void* rows;            /* R (n, p): in the input's units; NaN are missing if `observed` */
  const double* weights;       /* (n) or NULL: all are 1 */
  const double *mean, *scale;  /* (p) */
  const double* whitening;     /* (p, p) or NULL: lower triangular */
  const double* centers;       /* (k, p) */
  const double* w;             /* (p): feature weights */
  const double* terms;         /* (n) or NULL: squared norms of the rows */
  const void* factors;         /* T (k, p): a distance is Σ factors z + Σ constants + the row's term */
  const void* constants;       /* T (k, p) or NULL: for missing values */
  const void* norms;           /* T (k + k % 2): sums of the constants, ∞ in the pad */
  const void* reaches;         /* T (k + k % 2): size of the terms of a product */
  const void* ratio_limits;    /* T (k) or NULL: ratios from which weights are negligible */
  const void* basis;           /* T (n_leading, p) or NULL: orthonormal directions, see partial.hpp */
  const void* leading;         /* T (k, n_leading) or NULL: the factors along these directions */
  const void* rests;           /* T (k) or NULL: norms of the factors without them */
  const int8_t* edges;         /* (k, p) or NULL: where centres lie at an end of the domain */
  double* n_j;                 /* (k) or NULL: weights of the clusters, added to like all results */
  double* sums;                /* (k, p) or NULL */
  double* squares;             /* (p) or NULL */
  double* observed;            /* (k, p) or NULL: weights of the values that are not missing */
  double* totals;              /* (3) or NULL: objective, inertia, hardness (soft) or weight (hard) */
  double* far;                 /* (n_far) or NULL: largest distances, descending; 0 where unused */
  int64_t* far_rows;           /* (n_far) or NULL: their rows */
  int32_t* labels;             /* (n) or NULL: nearest centres; read by known_sums */
  const int32_t* guesses;      /* (n) or NULL: centres with which partial distances begin */
  double* distances;           /* (n) or NULL: to them */
  int32_t* lists;              /* (n, n_listed) or NULL: of near centres; read by nearest_listed */
  double* others;              /* (n) or NULL: lower bounds of the distances to all other centres */
  const uint8_t* moved;        /* (k) or NULL: centres to which distances are computed again */
  const uint8_t* changed;      /* (k) or NULL: clusters whose sums are computed again */
} Step;

/* Moments of a block. */
typedef struct {
  int64_t n, p, tile, single_rows;
  const void* rows;      /* R (n, p) */
  const double* weights; /* (n) or NULL */
  double* totals;        /* (2): number of rows of positive weight, sum of the weights */
  double* origin;        /* (p): of the differences whose mean is next */
  double *mean, *deviations, *lowest, *highest; /* (p) */
} Moments;

/* The term of each row that its divergences from all centres share. */
typedef struct {
  int64_t n, p, code, single_rows;
  const void* rows;        /* R (n, p) */
  const double* reference; /* (p) */
  double* terms;           /* (n) */
} Terms;

/* Bounds of the distances of rows, and what moved around each centre as in bounds.py: update_bounds. */
typedef struct {
  int64_t n, p, k, code, single_rows, scaled;
  int64_t n_shells, n_listed;
  double doubt;                   /* share by which bounds are lowered: more than all rounding */
  const void* rows;               /* R (n, p) */
  const double *mean, *scale;     /* (p) */
  const double* whitening;        /* (p, p) or NULL */
  const double* centers;          /* (k, p) */
  const double *reach, *farthest; /* (k, n_shells) */
  const double* ways;             /* (k) */
  const double* apart;            /* (k, n_listed + 1) */
  const int32_t* around;          /* (k, n_listed) */
  int32_t* labels;                /* (n) */
  double *lower, *upper;          /* (n) */
  uint8_t* doubtful;              /* (n) */
} Bounds;

/* Gaussian components and a block: mixture_sums. Sums are around the means that come in, so that
   nothing cancels. */
typedef struct {
  int64_t n, p, k, tile, single_rows;
  int64_t n_factors;                /* k; 1: one for all components; 0: `inverse_deviations` */
  double negligible;                /* responsibilities up to this enter no sum but `total` */
  const void* rows;                 /* R (n, p) */
  const double* weights;            /* (n) or NULL: all are 1 */
  const double* means;              /* (k, p) */
  const double* factors;            /* (n_factors, p, p) or NULL: upper triangular U; U Uᵀ is the
                                       inverse covariance */
  const double* inverse_deviations; /* (k, p) or NULL: of independent features */
  const double* constants;          /* (k): log of the share and of the density at the mean */
  const double* degrees;            /* (k) or NULL: ν, degrees of freedom of t distributions. The sums
                                       around the means have weights w γ u then, where
                                       u = (ν + p) / (ν + δ) at a squared distance δ */
  double* pulls;                    /* (k) or NULL: Σ w γ u */
  double* logs;                     /* (k) or NULL: Σ w γ (log u − u) */
  double* n_j;                      /* (k) or NULL: Σ w γ, added to like all sums; NULL for none */
  double* sums;                     /* (k, p) or NULL: Σ w γ (x − μ) */
  double* squares;                  /* (k, p) or NULL: Σ w γ (x − μ)² of independent features */
  double* scatters;                 /* (n_factors, p, p) or NULL: Σ w γ (x − μ)(x − μ)ᵀ, on and above
                                       the diagonal; over all components if they share a factor */
  double* total;                    /* (1) or NULL: Σ w log p(x) */
  int32_t* labels;                  /* (n) or NULL: the first of the most probable components */
  double* densities;                /* (n) or NULL: log p(x) */
  double* responsibilities;         /* (n, k) or NULL: γ, the probabilities of the components */
} Mixture;

/* Products of sparse rows, as in scipy's CSR arrays. */
typedef struct {
  int64_t n, n_stored, n_dense, n_out, n_columns; /* rows, values, lines of `dense` and `out` */
  int64_t wide;                                   /* whether indices have 64 bits */
  const double* data;                             /* (n_stored) */
  const void* indices;                            /* I (n_stored) */
  const void* indptr;                             /* I (n + 1) */
  const double* dense;   /* (n_dense, n_columns) or NULL: a line per feature, or per row in sums */
  const int64_t* labels; /* (n) or NULL: of labelled_sums */
  const double* factors; /* (n) or NULL: of labelled_sums */
  double* out;           /* (n_out, n_columns) */
} Sparse;

/* Greedy k-means++ within cells of rows: greedy_choice. */
typedef struct {
  int64_t n, p, k, n_cells, n_trials;
  double rounding;        /* share of the norms up to which a distance is 0 */
  const float* rows;      /* (n, p): sorted by cell, about the mean of the cell */
  const float* norms;     /* (n): squared norms */
  const double* weights;  /* (n) */
  const int64_t* ends;    /* (n_cells): end of each cell's rows */
  const double* uniforms; /* (k, n_trials + 1): random numbers from 0 to 1 */
  int64_t* chosen;        /* (k): rows, the first of each cell first; −1 once no cost is left */
} Greedy;

/* Every entry takes the level of the instruction set, and returns 0 when done. */
enum { DONE = 0, OUT_OF_MEMORY = 1, NOT_FINITE = 2 };
#define DASKMM_ENTRIES(ENTRY)    \
  ENTRY(soft_sums, Step)         \
  ENTRY(hard_sums, Step)         \
  ENTRY(nearest_centers, Step)   \
  ENTRY(nearest_listed, Step)    \
  ENTRY(known_sums, Step)        \
  ENTRY(moments, Moments)        \
  ENTRY(row_terms, Terms)        \
  ENTRY(update_bounds, Bounds)   \
  ENTRY(mixture_sums, Mixture)   \
  ENTRY(sparse_products, Sparse) \
  ENTRY(sparse_sums, Sparse)     \
  ENTRY(labelled_sums, Sparse)   \
  ENTRY(greedy_choice, Greedy)

#if defined(_WIN32)
#define DASKMM_PUBLIC __declspec(dllexport)
#else
#define DASKMM_PUBLIC __attribute__((visibility("default")))
#endif
#ifdef __cplusplus
}
#endif

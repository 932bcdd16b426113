// All entries for one instruction set, which the compiler's options choose. INSTRUCTIONS names it.
#include "bounds.hpp"
#include "greedy.hpp"
#include "hard_sums.hpp"
#include "mixture.hpp"
#include "moments.hpp"
#include "soft_sums.hpp"
#include "sparse.hpp"

#define JOINED_(a, b) daskmm_##a##_##b
#define JOINED(a, b) JOINED_(a, b)
#define ENTRY(name, Type) extern "C" int JOINED(name, INSTRUCTIONS)(const Type* a)

// Compute sums over tiles of `tile` rows.
template <class Work, class A> static int run(const A& a, Index tile) {
  Work work(a);
  return run(work, a.n, tile);
}
// Compute the same sums, in single precision if the flag is set.
#define RUN(Work, flag, tile) (a->flag ? run<Work<float>>(*a, tile) : run<Work<double>>(*a, tile))
template <template <class R, class T> class Work, class T> static int run_step(const Step& a) {
  return a.single_rows ? run<Work<float, T>>(a, a.tile) : run<Work<double, T>>(a, a.tile);
}
#define RUN_STEP(Work) (a->single ? run_step<Work, float>(*a) : run_step<Work, double>(*a))

ENTRY(soft_sums, Step) { return RUN(SoftSums, single, a->tile); }
ENTRY(hard_sums, Step) { return RUN_STEP(HardSums); }
ENTRY(nearest_centers, Step) { return RUN_STEP(NearestCenters); }
ENTRY(nearest_listed, Step) { return RUN_STEP(NearestListed); }
ENTRY(known_sums, Step) { return RUN(KnownSums, single_rows, a->tile); }
ENTRY(moments, Moments) { return RUN(MomentSums, single_rows, a->tile); }
ENTRY(row_terms, Terms) { return RUN(RowTerms, single_rows, repeated_length(a->p) / a->p); }
ENTRY(update_bounds, Bounds) { return RUN(BoundTest, single_rows, BOUND_ROWS); }
ENTRY(mixture_sums, Mixture) { return RUN(MixtureSums, single_rows, a->tile); }

#define RUN_SPARSE(sums) (a->wide ? SparseRows<int64_t>{*a}.sums() : SparseRows<int32_t>{*a}.sums())
ENTRY(sparse_products, Sparse) { return RUN_SPARSE(products); }
ENTRY(sparse_sums, Sparse) { return RUN_SPARSE(sums); }
ENTRY(labelled_sums, Sparse) { return RUN_SPARSE(labelled_sums); }
ENTRY(greedy_choice, Greedy) { return greedy_choice(*a); }

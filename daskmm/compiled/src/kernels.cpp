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
template <class R> using MixedSums = HardSums<R, double>;

ENTRY(soft_sums, Step) { return RUN(SoftSums, single, a->tile); }
ENTRY(hard_sums, Step) {
  return a->single ? run<HardSums<float, float>>(*a, a->tile) : RUN(MixedSums, single_rows, a->tile);
}
ENTRY(nearest_centers, Step) { return RUN(NearestCenters, single, a->tile); }
ENTRY(nearest_listed, Step) { return RUN(NearestListed, single, a->tile); }
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

// All loops for one instruction set, which the compiler's options choose. INSTRUCTIONS names it.
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
// Choose the template for the type of the rows.
#define FOR_ROWS(call) (a->single_rows ? call<float>(*a) : call<double>(*a))

ENTRY(soft_sums, Step) { return a->single ? soft_sums<float>(*a) : soft_sums<double>(*a); }
ENTRY(hard_sums, Step) {
  if (a->single) return hard_sums<float, float>(*a);
  return a->single_rows ? hard_sums<float, double>(*a) : hard_sums<double, double>(*a);
}
ENTRY(nearest_centers, Step) { return a->single ? nearest_centers<float>(*a) : nearest_centers<double>(*a); }
ENTRY(nearest_listed, Step) { return a->single ? nearest_listed<float>(*a) : nearest_listed<double>(*a); }
ENTRY(known_sums, Step) { return FOR_ROWS(known_sums); }
ENTRY(moments, Moments) { return FOR_ROWS(moments); }
ENTRY(row_terms, Terms) { return FOR_ROWS(row_terms); }
ENTRY(fill_moves, Moving) { return fill_moves(*a); }
ENTRY(update_bounds, Bounds) { return FOR_ROWS(update_bounds); }
ENTRY(compare_all, Bounds) { return FOR_ROWS(compare_all); }
ENTRY(mixture_sums, Mixture) { return FOR_ROWS(mixture_sums); }

template <class Use> static int with_indices(const Sparse& a, Use use) {
  if (a.wide) use(SparseRows<int64_t>(a));
  else use(SparseRows<int32_t>(a));
  return DONE;
}
ENTRY(sparse_products, Sparse) {
  return with_indices(*a, [](const auto& rows) { rows.products(); });
}
ENTRY(sparse_sums, Sparse) {
  return with_indices(*a, [](const auto& rows) { rows.sums(); });
}
ENTRY(labelled_sums, Sparse) {
  return with_indices(*a, [](const auto& rows) { rows.labelled_sums(); });
}
ENTRY(greedy_choice, Greedy) { return greedy_choice(*a); }

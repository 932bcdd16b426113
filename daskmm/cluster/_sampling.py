"""Parameters that say how often a table is read: a sample to anneal on, and memory to keep it."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

from sklearn.utils._param_validation import Interval, StrOptions

from daskmm.blocks import Layout
from daskmm.holding import Persist
from daskmm.passes import Passes
from daskmm.survey import Survey, first_pass, sample_size

# "auto" anneals on a sample where the table has more than this many times its rows.
_LARGE = 2


class Sampling:
    """Mixin of the estimators that anneal on a sample of a large table, or keep it in memory."""

    _sampling_constraints: ClassVar[dict[str, list[Any]]] = {
        "sample_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), None],
        "persist": ["boolean", StrOptions({"auto"})],
    }

    standardize: Any
    sample_size: int | str | None
    persist: Persist

    if TYPE_CHECKING:

        @property
        def _n_at_most(self) -> int: ...

        @property
        def _n_at_least(self) -> int: ...

    def _sample_rows(self) -> int | None:
        """Rows that were asked for; None for the usual number."""
        if self.sample_size is None or isinstance(self.sample_size, str):
            return None
        if self.sample_size < self._n_at_least:
            raise ValueError(
                f"sample_size={self.sample_size} should be >= n_clusters={self._n_at_least}."
            )
        return int(self.sample_size)

    def _samples(self, layout: Layout) -> bool:
        """Whether to anneal on a sample, and read the table to polish only.

        A table of unknown length passes for a small one: plans promise no more than they know.
        """
        # Without a polish there would be nothing to do over all rows.
        if self.sample_size is None or not getattr(self, "polish", True) or layout.n_rows is None:
            return False
        wanted = self._sample_rows()
        if wanted is not None:
            return layout.n_rows > wanted
        usual = sample_size(layout.n_rows, layout.n_features, self._n_at_most)
        return layout.n_rows > _LARGE * usual

    def _on_scheduler(self, layout: Layout) -> bool:
        """Whether work on the sample goes to the active dask scheduler, as its annealing does.

        Where the table itself is annealed, a compute is a pass over it.
        """
        return layout.lazy and self._samples(layout)

    def _survey(self, passes: Passes, seed: int, **metric: Any) -> Survey:
        """First pass, with the samples that are wanted; rows have been counted.

        Parameters
        ----------
        passes : Passes
        seed : int
        **metric
            Of `first_pass`, where distances are not k-means'.
        """
        layout = passes.blocks.layout
        assert layout.n_rows is not None
        usual = sample_size(layout.n_rows, layout.n_features, self._n_at_most)
        return first_pass(
            passes,
            self._n_at_least,
            bool(self.standardize),
            seed,
            wanted=self._sample_rows() or usual,
            with_reserve=self._samples(layout),
            **metric,
        )

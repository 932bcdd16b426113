"""Parameters of the annealing, and the schedule that they make."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

from sklearn.utils._param_validation import Interval, StrOptions

from daskmm.mm import Schedule

# s0="auto": the first power is at most −1.
HARMONIC = -1.0
# φ can be as large as k^(−1/s); beyond this (nats) its sums overflow.
_LARGEST_LOG = 600.0


class Annealing:
    """Mixin of the estimators that begin at a finite power."""

    _annealing_constraints: ClassVar[dict[str, list[Any]]] = {
        "s0": [StrOptions({"auto"}), Interval(Real, None, 0, closed="neither")],
        "eta": [Interval(Real, 1, None, closed="left")],
        "anneal_every": [Interval(Integral, 1, None, closed="left")],
        "polish": ["boolean"],
    }

    # s0="auto" is this multiple of the critical power: just past it, where weights of features or
    # kernels are learned while all rows still belong to all clusters.
    _critical_multiple: ClassVar[float] = 1.25

    s0: float | str
    eta: float
    anneal_every: int
    polish: bool
    max_iter: int
    tol: float

    if TYPE_CHECKING:

        @property
        def _n_at_most(self) -> int: ...

    def _schedule_past(self, critical_power: float) -> Schedule:
        """Schedule for data of a given critical power."""
        s0 = self.s0
        if isinstance(s0, str):
            s0 = min(HARMONIC, self._critical_multiple * critical_power)
        elif math.log(self._n_at_most) > -s0 * _LARGEST_LOG:
            raise ValueError(
                f"s0={s0} is too close to 0 for n_clusters={self._n_at_most}: k^(-1/s) overflows."
            )
        return Schedule(
            float(s0),
            float(self.eta),
            self.anneal_every,
            bool(self.polish),
            self.max_iter,
            self.tol,
            critical_power,
        )

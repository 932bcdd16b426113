"""Multi-kernel power k-means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.metrics import pairwise_distances

from daskmm.cluster._estimator import estimator
from daskmm.cluster._kernels import KernelClusterer
from daskmm.cluster._sklearn import Interval
from daskmm.engine.first_pass import Survey
from daskmm.numerics.kernels import Kernel, are_movable
from daskmm.numerics.options import KERNELS

# Bandwidths of the papers' seven Gaussian kernels, as shares of the largest distance.
_SHARES = (0.01, 0.05, 0.1, 1.0, 10.0, 50.0, 100.0)
# Rows of the sample whose largest distance sets the default bandwidths.
_DISTANCE_ROWS = 2000


@estimator
@dataclass(eq=False, repr=False, kw_only=True)
class MultiKernelPowerKMeans(KernelClusterer):
    """Multi-kernel power k-means, which learns the weights of several kernels while it anneals.

    It minimises (1/n) Σ_i M_s(y_i1, …, y_ik) + λ Σ_l α_l log α_l, where y_ij = Σ_l α_l d²_ijl,
    d_ijl is the distance of row i to mean j in the feature space of kernel l, and α sums to 1. The
    update of α uses S_l = Σ_ij φ_ij d²_ijl, so the objective cannot rise; with the norm without its
    square, as the paper prints it, the objective can rise.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    kernels : list of kernel specifications, optional
        The kernels: each is the name of a kernel, a callable on two blocks of rows, or a dict such
        as ``{"kernel": "rbf", "bandwidth": 2.0}`` or ``{"kernel": "polynomial", "degree": 2,
        "coef0": 0}``. The default is twelve kernels of centred rows: seven Gaussian ones, whose
        bandwidths are .01, .05, .1, 1, 10, 50 and 100 times the largest distance (among a sample of
        rows), four polynomial ones (degree 2 and 4, coef0 0 and 1), and the cosine. Given kernels
        get the rows as they are if one of them is polynomial, of angles or a callable, and
        `standardize` is not set; otherwise they get centred rows.
    normalize : bool, default=True
        Divide each kernel by √(k(x,x) k(y,y)), so that their distances are comparable.
    lam : float, default=0.04
        Penalty λ > 0 per unit of sample weight: small values choose few kernels.
    gram, init, n_init, s0
        As in `KernelPowerKMeans`.
    [eta, anneal_every, polish, max_iter, tol, random_state]
    standardize : bool, default=False
        Divide each feature by its population standard deviation. This is done before the
        kernels are evaluated.
    [verbose, callbacks, checkpoint]

    Attributes
    ----------
    kernel_weights_ : ndarray of shape (n_kernels,)
        Weights α of the kernels; they sum to 1.
    kernels_ : list of daskmm.numerics.kernels.Kernel
        The kernels that were used, with their bandwidths.
    [objective_history_]
    labels_, cluster_sizes_, memberships_, inertia_, history_, n_iter_, n_passes_, s_, gram_
        As in `KernelPowerKMeans`.
    [n_features_in_]

    References
    ----------
    Paul, Chakraborty, Das & Xu, "Kernel k-Means, By All Means: Algorithms and Strong
    Consistency", 2020: objective (8), distances (9), Algorithm 2.
    """

    kernels: Sequence[str | dict[str, Any] | Callable[..., Any]] | None = None
    normalize: bool = True
    lam: float = 0.04
    standardize: bool = False

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **KernelClusterer._parameter_constraints,
        "kernels": [list, tuple, None],
        "normalize": ["boolean"],
        "lam": [Interval(Real, 0, None, closed="neither")],
    }

    def _centers(self) -> bool:
        if self.standardize or self.kernels is None:
            return True
        return are_movable(
            each.get("kernel") if isinstance(each, dict) else each for each in self.kernels
        )

    def _kernels(self, survey: Survey) -> list[Kernel]:
        specifications = self._twelve(survey) if self.kernels is None else list(self.kernels)
        if not specifications:
            raise ValueError("kernels must not be empty.")
        return [kernel_from(each, bool(self.normalize)) for each in specifications]

    def _twelve(self, survey: Survey) -> list[Any]:
        rows = survey.sample.rows[:_DISTANCE_ROWS]
        largest = float(pairwise_distances(rows).max()) or 1.0
        return [
            *({"kernel": "rbf", "bandwidth": share * largest} for share in _SHARES),
            *(
                {"kernel": "polynomial", "degree": degree, "coef0": coef0}
                for coef0 in (0, 1)
                for degree in (2, 4)
            ),
            "cosine",
        ]

    def _n_kernels(self) -> int:
        return 12 if self.kernels is None else len(self.kernels)


def kernel_from(specification: Any, normalize: bool) -> Kernel:
    """Return the kernel of an entry of the parameter `kernels`; raise ValueError for a bad one."""
    if callable(specification):
        return Kernel("callable", function=specification, unit_diagonal=normalize)
    if isinstance(specification, str):
        specification = {"kernel": specification}
    if not isinstance(specification, dict) or specification.get("kernel") not in KERNELS:
        raise ValueError(
            f"kernels must name {', '.join(KERNELS)}, or be callable; got {specification!r}."
        )
    given = {**specification}
    name = given.pop("kernel")
    unknown = set(given) - {"bandwidth", "degree", "coef0"}
    if unknown:
        raise ValueError(f"kernels: unknown parameter(s) {sorted(unknown)} in {specification!r}.")
    try:
        values: dict[str, Any] = {key: float(value) for key, value in given.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"kernels: parameters of {specification!r} must be numbers.") from error
    if (
        not np.isfinite(list(values.values())).all()
        or values.get("bandwidth", 1.0) <= 0
        or values.get("degree", 1.0) < 1
    ):
        raise ValueError(
            f"kernels: parameters of {specification!r} must be finite, with bandwidth > 0 and "
            "degree >= 1."
        )
    return Kernel(name, unit_diagonal=normalize, **values)

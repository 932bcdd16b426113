"""Reference outputs: the authors' programs, and the printed papers implemented independently."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from _shared import SHARED

from daskmm import EntropyPowerKMeans, PowerKMeans
from daskmm.kmeans.sums import center_sums
from daskmm.kmeans.updates import EntropyUpdate, PowerUpdate
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.rows import Coordinates

# The authors' settings.
FIRST_POWER, FACTOR, EVERY, LONGEST, STILL = -1.0, 1.04, 2, 200, 1e-5


def oracle(name):
    path = SHARED / "oracles" / f"{name}.npz"
    if not path.exists():
        pytest.skip(
            f"reference outputs are not here: {path} is missing; set DASKMM_SHARED to the folder "
            "that holds oracles/"
        )
    with np.load(path) as data:
        return dict(data)


def odd_chunks(X):
    """Ragged rows, an empty block, a block of one row, and column chunks."""
    n, p = X.shape
    return da.from_array(X, chunks=((37, 0, 1, 53, n - 91), (1, p - 1)))


@pytest.mark.parametrize("read", [np.asarray, odd_chunks], ids=["numpy", "dask"])
@pytest.mark.parametrize(
    "name",
    [
        "paper_power_iris",
        "paper_power_wine_z",
        "paper_ewp_iris",
        "paper_ewp_wine_z",
        "paper_ewp_wine_z_lam1",
    ],
)
def test_estimators_do_what_the_papers_print(name, read):
    expected = oracle(name)
    settings = {
        "n_clusters": len(expected["init"]),
        "init": expected["init"],
        "s0": float(expected["s0"]),
        "eta": float(expected["eta"]),
        "max_iter": int(expected["max_iter"]),
        "tol": 0,
        "polish": False,
        "standardize": False,
    }
    lam = float(expected["lam"])
    power = lam == -1
    model = PowerKMeans(**settings) if power else EntropyPowerKMeans(**settings, lam=lam)
    model.fit(read(expected["X"]))
    names = ["cluster_centers", "objective_history", "inertia"]
    names += [] if power else ["feature_weights"]
    for name in names:
        np.testing.assert_allclose(
            getattr(model, f"{name}_"), expected[name], rtol=1e-9, err_msg=name
        )
    np.testing.assert_array_equal(np.asarray(model.labels_), expected["labels"])
    assert model.n_iter_ == expected["max_iter"]


def authors_program(X, theta0, lam=None):
    """The authors' loop around our kernels; returns θ, w, labels, iterations and s.

    Their φ leaves out the factor 1/k: it is k^(1/s) times the paper's. The centres do not notice
    but the dispersions do, so that their λ acts like k^(−1/s) λ, s being the power at which φ was
    taken; and their λ is a sum over the rows, not per row.
    """
    n, p = X.shape
    coordinates = Coordinates(X.mean(axis=0), np.ones(p))
    s, k = FIRST_POWER, len(theta0)

    def update_at(s):
        if lam is None:
            return PowerUpdate()
        return EntropyUpdate(lam=lam / n * k ** (-1.0 / s), varying=np.ones(p, dtype=bool))

    state = update_at(s).start(coordinates.to_model(theta0), s)
    for iteration in range(1, LONGEST + 1):
        before = state
        sums = center_sums(X, None, coordinates, (before,)).records[0]
        state = update_at(s).update(sums, before, float(n))
        if iteration % EVERY == 0:
            s *= FACTOR
        state = replace(state, s=s)
        if np.abs(state.centers - before.centers).sum(axis=0).max() < STILL:
            break
    z = coordinates.to_model(X)
    tile = SQUARED_EUCLIDEAN.tile(z, False)
    distances = SQUARED_EUCLIDEAN.distances(tile, state.centers, state.feature_weights)
    labels = distances.argmin(axis=1)
    return coordinates.to_input(state.centers), state.feature_weights, labels, iteration, s


@pytest.mark.parametrize(
    "name",
    [
        "power_iris",
        "power_wine_z",
        "ewp_iris_lam5",
        "ewp_iris_lam30",
        "ewp_wine_z_lam10",
        "ewp_wine_z_lam30",
    ],
)
def test_kernels_do_what_the_authors_programs_do(name):
    expected = oracle(name)
    lam = float(expected["lam"]) if "lam" in expected else None
    theta, w, labels, n_iter, s = authors_program(expected["X"], expected["theta0"], lam)
    np.testing.assert_allclose(theta, expected["theta"], rtol=1e-8)
    np.testing.assert_array_equal(labels, expected["labels"])
    assert n_iter == expected["n_iter"]
    np.testing.assert_allclose(s, expected["s"], rtol=1e-12)
    if lam is not None:
        np.testing.assert_allclose(w, expected["w"], rtol=1e-8)

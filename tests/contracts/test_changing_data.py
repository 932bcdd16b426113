"""Data that change between two readings end a fit with one error, which says so."""

import uuid

import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone

from daskmm import (
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)
from daskmm.data.blocks import Block, Position
from daskmm.engine.changes import Watch
from daskmm.gram import precomputed
from daskmm.kmeans.sums import CenterState, center_sums
from daskmm.numerics.distortions.bregman import SquaredEuclidean
from daskmm.numerics.rows import Coordinates

CHUNK, BLOCK, ROW = 100, 3, 7
_RNG = np.random.default_rng(0)
ROWS = np.concatenate([_RNG.normal(m, 1.0, (400, 3)) for m in (10, 20, 30)])
ROWS = ROWS[_RNG.permutation(len(ROWS))]


def read(block, folder, change, first, block_id):
    """A block as it is read; what is read of one block from the `first` reading on is changed."""
    (folder / f"{block_id[0]}-{uuid.uuid4().hex}").touch()
    readings = len([*folder.glob(f"{block_id[0]}-*")])
    changes = block_id[0] == BLOCK and readings >= first and not (folder / "mended").exists()
    return change(block.copy()) if changes else block


def changing(change, folder, first=2, rows=ROWS):
    """Rows in blocks on a pretended disk, one of which is not what it was when it is read again."""
    return da.from_array(rows, chunks=(CHUNK, -1)).map_blocks(
        read, folder, change, first, dtype=rows.dtype, meta=rows[:0], token=uuid.uuid4().hex
    )


class Holds:
    """A change: one value of a row is another one."""

    def __init__(self, value):
        self.value = value

    def __call__(self, block):
        block[ROW, 1] = self.value
        return block


def is_shifted(block):
    return block + 0.5


def is_cut(block):
    return block[:-5]


def fails(block):
    raise OSError("the storage does not answer")


def is_too_large(block):
    raise MemoryError


CHANGES = {
    "NaN": Holds(np.nan),
    "inf": Holds(np.inf),
    "-inf": Holds(-np.inf),
    "1e300": Holds(1e300),
    "shifted": is_shifted,
    "fewer rows": is_cut,
}
PLAIN = {"standardize": False, "random_state": 0}
FITS = {
    "KMeans": KMeans(3, **PLAIN),
    "KMeans kl": KMeans(3, random_state=0, distortion="kl"),
    "KMeans cosine": KMeans(3, random_state=0, distortion="cosine"),
    "KMeans manhattan": KMeans(3, random_state=0, distortion="manhattan"),
    "KMeans mahalanobis": KMeans(3, random_state=0, distortion="mahalanobis"),
    "KMeans trimmed": KMeans(3, **PLAIN, trim=0.1),
    "PowerKMeans": PowerKMeans(3, **PLAIN),
    "PowerKMeans of all rows": PowerKMeans(3, random_state=0, sample_size=None, polish=False),
    "EntropyPowerKMeans": EntropyPowerKMeans(3, random_state=0, lam=1.0),
    "landmarks": KernelPowerKMeans(3, random_state=0, n_landmarks=20),
    "kernel": KernelPowerKMeans(3, random_state=0),
    "kernels": MultiKernelPowerKMeans(3, random_state=0, gram="recompute"),
    "mixture": GaussianMixture(3, random_state=0, tol=0, max_iter=4),
    "mean shift": WeightedBlurringMeanShift(1.0, random_state=0),
    "micro-clusters": WeightedBlurringMeanShift(1.0, random_state=0, n_representatives=100),
}
# Words that an error contains.
SAID = "changed|shape"


def refused(estimator, X, **fit):
    """The message with which a fit ends; nothing is fitted then."""
    with pytest.raises(ValueError, match=SAID) as caught:
        estimator.fit(X, **fit)
    assert not {"labels_", "inertia_", "cluster_centers_", "history_"} & set(vars(estimator))
    return str(caught.value)


@pytest.mark.in_turn("change")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fit", FITS)
def test_fit_to_rows_that_change_at_their_second_reading_raises(fit, change, tmp_path):
    if (fit, change) == ("KMeans cosine", "1e300"):
        pytest.skip("a row may have any length there")
    message = refused(clone(FITS[fit]), changing(CHANGES[change], tmp_path))
    if change in ("NaN", "inf", "-inf"):
        assert "block 3, row 7 of the block" in message
        assert "first pass" in message


@pytest.mark.parametrize("distortion", ["kl", "itakura-saito", "poisson"])
def test_value_that_leaves_the_domain_is_named(distortion, tmp_path):
    estimator = KMeans(3, random_state=0, distortion=distortion)
    message = refused(estimator, changing(Holds(-1.0), tmp_path))
    assert "Negative values" in message
    assert "block 3, row 7 of the block" in message


@pytest.mark.parametrize("value", [np.inf, 1e300])
def test_value_is_named_where_others_may_be_missing(value, tmp_path):
    rows = ROWS.copy()
    rows[::50, 0] = np.nan
    estimator = KMeans(3, random_state=0, missing="partial")
    message = refused(estimator, changing(Holds(value), tmp_path, rows=rows))
    assert "block 3, row 7 of the block" in message


def test_value_that_is_lost_where_others_are_missing_shows_in_the_sums(tmp_path):
    rows = ROWS.copy()
    rows[::50, 0] = np.nan
    estimator = KMeans(3, random_state=0, missing="partial")
    message = refused(estimator, changing(Holds(np.nan), tmp_path, rows=rows))
    assert "sum of feature 1" in message


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("first", [2, 3])
def test_small_change_of_a_single_row_shows_in_the_sums_of_hard_steps(first, dtype, tmp_path):
    rows = ROWS.astype(dtype)
    change = Holds(rows[CHUNK * BLOCK + ROW, 1] + dtype(0.1))
    message = refused(KMeans(3, **PLAIN), changing(change, tmp_path, first, rows))
    assert "between the first pass and pass" in message
    assert "sum of feature 1" in message


@pytest.mark.in_turn("fit")
@pytest.mark.parametrize("fit", ["KMeans cosine", "KMeans mahalanobis", "landmarks"])
def test_small_change_between_hard_steps_shows_in_other_coordinates(fit, tmp_path):
    steps = clone(FITS[fit]).fit(changing(is_cut, tmp_path, 10**9))
    change = Holds(ROWS[CHUNK * BLOCK + ROW, 1] + 20.0)
    again = tmp_path / "again"
    again.mkdir()
    refused(clone(FITS[fit]), changing(change, again, steps.n_passes_))


def test_weights_that_change_are_named(tmp_path):
    weights = np.ones((len(ROWS), 1))
    lazy = changing(lambda block: 2.0 * block, tmp_path, rows=weights)[:, 0]
    X = da.from_array(ROWS, chunks=(CHUNK, -1))
    assert "sum of sample_weight" in refused(KMeans(3, **PLAIN), X, sample_weight=lazy)


def test_memmap_that_is_overwritten_during_a_fit_raises(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    mapped = np.load(path, mmap_mode="r+")

    def overwrite(record):
        mapped[40:50] += 1.0

    refused(PowerKMeans(3, eta=1.3, **PLAIN, callbacks=[overwrite]), mapped)


def test_sparse_rows_that_change_raise(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    X = changing(is_shifted, tmp_path).map_blocks(
        sparse.csr_array, meta=sparse.csr_array((0, 3), dtype=np.float64)
    )
    refused(KMeans(3, random_state=0), X)


def test_checkpoint_of_a_fit_whose_rows_changed_is_resumed_once_they_are_mended(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    X = changing(Holds(np.nan), folder, 6)
    estimator = PowerKMeans(
        3,
        standardize=False,
        random_state=0,
        sample_size=None,
        eta=1.3,
        checkpoint=tmp_path / "checkpoint",
    )
    refused(estimator, X)
    (folder / "mended").touch()
    resumed = estimator.fit(X)
    whole = clone(estimator).set_params(checkpoint=None).fit(X)
    np.testing.assert_array_equal(resumed.cluster_centers_, whole.cluster_centers_)
    assert resumed.n_iter_ == whole.n_iter_


def test_given_matrix_that_loses_a_value_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(precomputed, "MEMORY_BYTES", 0)
    some = ROWS[:600] - ROWS.mean(axis=0)
    (tmp_path / "mended").touch()
    lazy = changing(Holds(np.nan), tmp_path, 1, rows=some @ some.T)
    gram = precomputed.precomputed(lazy.rechunk((600, 600)))
    (tmp_path / "mended").unlink()
    some_rows = np.array([1, 307])
    for read_again in (
        lambda: gram.product(np.ones((600, 1))),
        lambda: gram.columns(some_rows),
        lambda: gram.submatrix(some_rows),
    ):
        with pytest.raises(ValueError, match=r"has changed since .* at \(307, 1\)"):
            read_again()


def test_sums_that_overflow_though_the_values_are_in_order_are_named():
    state = CenterState(np.full((1, 3), 1e200), -np.inf)
    watch = Watch(SquaredEuclidean, partial=False, later=True)

    def sums(block):
        with np.errstate(over="ignore", invalid="ignore"):
            return center_sums(block.rows, block.weights, Coordinates.identity(3), (state,))

    with pytest.raises(ValueError, match="sums of block 3 are not finite, though its values are"):
        watch.call(sums, Block(ROWS[:100], position=Position(3, 300)))


# What a block's load raises


@pytest.mark.parametrize("change", [fails, is_too_large])
@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_error_of_a_load_names_the_block(scheduler, change, tmp_path):
    with dask.config.set(scheduler=scheduler), pytest.raises((OSError, MemoryError)) as caught:
        KMeans(3, **PLAIN).fit(changing(change, tmp_path))
    assert caught.value.__notes__ == ["This error was raised while block 3 was read."]


def test_error_of_a_load_names_the_block_of_those_that_are_visited_together(tmp_path):
    X = da.from_array(ROWS, chunks=(8, -1)).map_blocks(
        read, tmp_path, fails, 1, dtype=float, meta=ROWS[:0], token=uuid.uuid4().hex
    )
    with pytest.raises(OSError, match="does not answer") as caught:
        KMeans(3, random_state=0).fit(X)
    assert caught.value.__notes__ == ["This error was raised while block 3 was read."]


# On a cluster


@pytest.mark.parametrize(
    ("fit", "change"),
    [("KMeans", "NaN"), ("PowerKMeans", "shifted"), ("kernel", "inf")],
)
def test_fit_to_rows_that_change_raises_on_a_cluster(fit, change, tmp_path, local_client):
    refused(clone(FITS[fit]), changing(CHANGES[change], tmp_path))


@pytest.mark.parametrize("persist", [False, True])
def test_error_of_a_load_names_the_block_on_a_cluster(persist, local_client, tmp_path):
    X = changing(fails, tmp_path, first=1)
    with pytest.raises(OSError, match="does not answer") as caught:
        KMeans(3, **PLAIN, persist=persist).fit(X)
    assert caught.value.__notes__ == ["This error was raised while block 3 was read."]
    assert len([*tmp_path.glob("3-*")]) == 1

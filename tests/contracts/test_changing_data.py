"""Data that change between two readings end a fit with one error, which says so."""

import uuid

import dask
import dask.array as da
import numpy as np
import pytest
from _support import ESTIMATORS, assert_same_model, fit_recording, quick

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)
from daskmm.gram import rows as gram_rows

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
STREAMED = {"gram": "recompute"}
FITS = {
    "KMeans": KMeans(3, random_state=0),
    "KMeans kl": KMeans(3, random_state=0, distortion="kl"),
    "KMeans cosine": KMeans(3, random_state=0, distortion="cosine"),
    "KMeans manhattan": KMeans(3, random_state=0, distortion="manhattan"),
    "KMeans mahalanobis": KMeans(3, random_state=0, distortion="mahalanobis"),
    "KMeans trimmed": KMeans(3, random_state=0, trim=0.1),
    "PowerKMeans": PowerKMeans(3, random_state=0),
    "PowerKMeans of all rows": PowerKMeans(3, random_state=0, sample_size=None, polish=False),
    "EntropyPowerKMeans": EntropyPowerKMeans(3, random_state=0, lam=1.0),
    "landmarks": KernelPowerKMeans(3, random_state=0, n_landmarks=20),
    "kernel": KernelPowerKMeans(3, random_state=0),
    "kernel of streamed rows": KernelPowerKMeans(3, random_state=0, **STREAMED),
    "kernels of streamed rows": MultiKernelPowerKMeans(3, random_state=0, **STREAMED),
    "mean shift": WeightedBlurringMeanShift(random_state=0),
    "micro-clusters": WeightedBlurringMeanShift(random_state=0, n_representatives=100),
}
# What an error says, at least.
SAID = "changed|shape"


@pytest.fixture
def streamed(monkeypatch):
    monkeypatch.setattr(gram_rows, "GATHERED_BYTES", 0)


def refused(estimator, X, **fit):
    """The message with which a fit ends; nothing is fitted then."""
    with pytest.raises(ValueError, match=SAID) as caught:
        estimator.fit(X, **fit)
    assert not {"labels_", "inertia_", "cluster_centers_", "history_"} & set(vars(estimator))
    return str(caught.value)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fit", FITS)
def test_fit_to_rows_that_change_at_their_second_reading_raises(fit, change, tmp_path, request):
    if "streamed" in fit:
        request.getfixturevalue("streamed")
    estimator = FITS[fit].set_params()
    message = refused(estimator, changing(CHANGES[change], tmp_path))
    if change in ("NaN", "inf", "-inf"):
        named = "row 307 of the data" if "streamed" in fit else "block 3, row 7 of the block"
        assert named in message
        assert "first pass" in message

"""Features that number the rows."""

import numpy as np
import pandas as pd
import pytest
from _support import quick

from daskmm import GaussianMixture, KernelPowerKMeans, KMeans
from daskmm.data.identifiers import numbering_features

RNG = np.random.default_rng(0)


def numbering(column, n_rows=2500):
    """Return the features that are found where two columns of measurements come before this one."""
    others = RNG.normal(size=(len(column), 2))
    return numbering_features(np.column_stack([others, column]), n_rows)


def test_numbers_of_rows_are_found_and_measurements_are_not():
    shuffled = RNG.permutation(2500) + 1e9
    assert numbering(shuffled) == [2]
    assert numbering(shuffled[:1000]) == []
    assert numbering(np.arange(100)) == [2]
    assert numbering(np.arange(100) * 10**4, n_rows=10**6) == [2]  # a sample of a large table
    assert numbering_features(np.arange(100.0)[:, None], 100) == []
    assert numbering(shuffled + 0.5) == []
    assert numbering(np.append(shuffled, shuffled[4])) == []
    sizes, seconds = RNG.integers(10**9, size=2500), 3600 * np.arange(2500)
    assert numbering(sizes) == []  # distinct, as chance would have it
    assert numbering(seconds) == []
    assert numbering(2.0**53 + 2 * np.arange(2500)) == []  # all floats of this size are integers


@pytest.mark.parametrize(
    "model",
    [quick(KMeans), KernelPowerKMeans(2, random_state=0), GaussianMixture(2, random_state=0)],
    ids=lambda model: type(model).__name__,
)
def test_a_fit_warns_once_of_identifiers(model):
    frame = pd.DataFrame(RNG.normal(size=(60, 2)), columns=["a", "b"]).assign(key=range(60))
    with pytest.warns(UserWarning, match="Column 'key' has a different integer in every") as found:
        model.fit(frame)
    assert sum("integer" in str(each.message) for each in found) == 1
    with pytest.warns(UserWarning, match="Columns 'key', 'id' have different integers"):
        model.fit(frame.assign(id=RNG.integers(1, 5, 60).cumsum()))

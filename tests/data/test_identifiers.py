"""Features that number the rows."""

import numpy as np
import pandas as pd
import pytest
from _support import quick

from daskmm import GaussianMixture, KernelPowerKMeans, KMeans
from daskmm.data.identifiers import numbering_features

RNG = np.random.default_rng(0)


def test_numbers_of_rows_are_found_and_measurements_are_not():
    values = RNG.normal(size=(2500, 2))
    counts = RNG.poisson(1e9, 2500)  # distinct, but in few of the rows would they grow
    shuffled = np.column_stack([values, RNG.permutation(2500) + 10**9])
    assert numbering_features(shuffled) == [2]
    assert numbering_features(shuffled[:1000]) == []
    assert numbering_features(np.column_stack([values, np.arange(2500)])[:100]) == [2]
    assert numbering_features(np.column_stack([values, counts])[:1000]) == []
    assert numbering_features(np.arange(100.0)[:, None]) == []
    assert numbering_features(shuffled + 0.5) == []
    shuffled[3, 2] = shuffled[4, 2]
    assert numbering_features(shuffled) == []


@pytest.mark.parametrize(
    "model",
    [quick(KMeans), KernelPowerKMeans(2, random_state=0), GaussianMixture(2, random_state=0)],
    ids=lambda model: type(model).__name__,
)
def test_a_fit_warns_once_of_identifiers(model):
    frame = pd.DataFrame(RNG.normal(size=(60, 2)), columns=["a", "b"]).assign(key=range(60))
    with pytest.warns(
        UserWarning, match="Column 'key' has a different integer in every row"
    ) as found:
        model.fit(frame)
    assert sum("different integer" in str(each.message) for each in found) == 1

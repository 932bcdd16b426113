"""Names of scikit-learn that are not public are fenced in one module."""

import re
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import sklearn.base

import daskmm

PRIVATE = re.compile(
    r"^\s*(?:from|import) sklearn(?:\.\w+)*\._\w+|^\s*from sklearn\S* import _", re.M
)


def test_private_names_are_imported_in_one_module():
    folder = Path(daskmm.__file__).parent
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if PRIVATE.search(path.read_text())
    }
    assert found == {"cluster/_sklearn.py"}


def test_the_representation_that_the_summary_extends_is_there():
    # MMClusterer overrides it; if scikit-learn renames it, notebooks silently lose the summary.
    assert hasattr(sklearn.base.BaseEstimator, "_repr_html_inner")


def test_distances_to_modes_stay_lazy_with_set_output():
    rows = np.random.default_rng(0).normal(size=(40, 2)) + np.repeat([[0.0], [20.0]], 20, axis=0)
    model = daskmm.WeightedBlurringMeanShift(0.1, random_state=0).set_output(transform="pandas")
    found = model.fit_transform(da.from_array(rows, chunks=(10, 2)))
    assert isinstance(found, dd.DataFrame)
    assert list(found.columns) == list(model.get_feature_names_out())
    assert isinstance(model.transform(rows), pd.DataFrame)

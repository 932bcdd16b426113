"""Tables as estimators read them: rows that are no numbers, columns by name."""

import numpy as np
import pandas as pd
import pytest

from daskmm import KMeans
from daskmm.data.input import by_name, read_table


@pytest.mark.parametrize("value", ["seven", [1, 2]])
def test_the_first_row_that_is_no_number_is_named(value):
    rows = np.ones((5, 2), dtype=object)
    rows[3, 1] = value
    with pytest.raises((TypeError, ValueError), match="row 3 cannot be read as numbers"):
        read_table(KMeans(), rows, True)


def test_columns_are_taken_by_the_names_that_are_known():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5.0, 6.0]})
    model = KMeans(2, random_state=0).fit(frame[["c", "a"]])
    assert list(by_name(model, frame).columns) == ["c", "a"]
    assert by_name(model, frame[["c", "a"]]).equals(frame[["c", "a"]])
    rows = frame.to_numpy()
    assert by_name(model, rows) is rows
    assert by_name(KMeans(2), frame) is frame

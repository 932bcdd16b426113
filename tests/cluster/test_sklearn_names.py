"""Names of scikit-learn that are not public are fenced in one module."""

import re
from pathlib import Path

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

"""What all tests share: which of them are quick, hypothesis profiles, loops compiled once."""

from __future__ import annotations

import functools
import itertools
import os
import time
import warnings
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "quick")

# Half seconds to wait for another worker to compile a kind of loops.
PATIENCE = 300


def pytest_collection_modifyitems(items):
    """Of tests marked `in_turn`, leave one value per combination of the others in the quick run."""
    groups = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("in_turn")
        if mark is not None and hasattr(item, "callspec"):
            (name,), params = mark.args, item.callspec.params
            if "check" in params:  # one of scikit-learn's, given in pairs with an estimator
                groups[item.path, item.originalname, _check_name(params["check"])].append(item)
            elif name in params:
                others = item.callspec.id.split("-")
                others.remove(params[name].__name__)
                groups[item.path, item.originalname, *others].append(item)
    turns = defaultdict(itertools.count)
    for (path, function, *_), group in groups.items():
        chosen = next(turns[path, function]) % len(group)
        for index, item in enumerate(group):
            if index != chosen:
                item.add_marker(pytest.mark.long)


def _check_name(check):
    return check.func.__name__ if isinstance(check, functools.partial) else check.__name__


def _kinds_of_loops():
    """Fits that compile the loops which many tests need, one kind of rows each."""
    from _support import blobs, quick

    from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

    rows, _ = blobs(5000)  # fewer are taken in double precision
    positive, holes = np.abs(rows) + 0.1, rows.copy()
    holes[::7, 0] = np.nan
    for dtype in (np.float64, np.float32):
        for model in (KMeans, PowerKMeans, EntropyPowerKMeans):
            yield functools.partial(quick(model, max_iter=2, tol=1.0).fit, rows.astype(dtype))
        partial = quick(PowerKMeans, missing="partial", max_iter=2, tol=1.0)
        yield functools.partial(partial.fit, holes.astype(dtype))
    for distortion in ("kl", "itakura-saito"):
        model = quick(PowerKMeans, distortion=distortion, max_iter=2, tol=1.0)
        yield functools.partial(model.fit, positive)


@pytest.fixture(scope="session", autouse=True)
def _loops_compiled(tmp_path_factory, request):
    """Compile the loops once, the workers of a run sharing the kinds; later runs load them."""
    if not hasattr(request.config, "workerinput"):
        return  # a single process compiles what its tests need
    shared = tmp_path_factory.getbasetemp().parent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, compile_kind in enumerate(_kinds_of_loops()):
            try:
                (shared / f"loops-{number}").open("x").close()
            except FileExistsError:
                continue  # another worker compiles it
            compile_kind()
            (shared / f"loops-{number}.done").touch()
    for number, _ in enumerate(_kinds_of_loops()):
        for _ in range(PATIENCE):
            if (shared / f"loops-{number}.done").exists():
                break
            time.sleep(0.5)

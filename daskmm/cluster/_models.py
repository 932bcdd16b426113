"""Save and load fitted estimators: a file with a version and a digest that holds no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from daskmm import cluster
from daskmm.cluster._fitting import is_fitted_name
from daskmm.numerics.columns import Expansion, MixedCoordinates
from daskmm.numerics.kernels import Kernel
from daskmm.storage.records import DamagedStateError, kind_of, read_state, registered, write_state
from daskmm.storage.remote import downloaded, exists, is_remote, local_path, uploaded

# Kind of the files of models.
KIND = "model"
_REPLACE = "Replace it by a copy, or fit and save the model again."
# Parameters that can name a place to write to, and their values that do not name one. The first of
# these values is the default.
_PLACES: dict[str, tuple[str | None, ...]] = {"checkpoint": (None,), "gram": ("auto", "recompute")}
# Key of the state of an estimator that is a part of another one.
_INNER = "estimator"

# They are registered here because `numerics` does not import storage.
for _definition in (Kernel, Expansion, MixedCoordinates):
    registered(_definition)


def save(estimator: BaseEstimator, path: str | Path, overwrite: bool) -> None:
    """Write a fitted estimator; see `MMClusterer.save`.

    A crash at any moment leaves the former model or the new one, never a part of one. Callbacks, a
    random state that is not an integer, lazy labels, and places to write to (`checkpoint`, a path
    as `gram`) are not saved.
    """
    if is_remote(path):
        if exists(path) and not (overwrite and _is_model_at(str(path))):
            raise _exists(path)
        with uploaded(str(path), "", lambda name: True) as file:
            _write(estimator, file)
        return
    path = local_path(path)
    if overwrite and path.is_symlink() and path.exists():
        path = path.resolve()  # the file is replaced, and the link stays
    if path.is_symlink() or (path.exists() and not (overwrite and kind_of(path) == KIND)):
        raise _exists(path)
    _write(estimator, path)


def _write(estimator: BaseEstimator, path: Path) -> None:
    try:
        write_state(path, _state_of(estimator), KIND)
    except TypeError as error:
        raise ValueError(f"The model cannot be saved. {error}") from error


def _state_of(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the parameters and fitted attributes of an estimator and of those it contains."""
    parameters = _without_places(estimator.get_params(deep=False))
    parameters.pop("callbacks", None)
    if not isinstance(parameters.get("random_state"), int | np.integer | None):
        parameters["random_state"] = None
    if hasattr(parameters.get("init"), "cluster_centers_"):  # the fit started from a model
        parameters["init"] = parameters["init"].cluster_centers_
    fitted = estimator.__getstate__()
    return {
        "class": type(estimator).__name__,
        "output": dict(getattr(estimator, "_sklearn_output_config", {})),
        "parameters": {name: _storable(value) for name, value in parameters.items()},
        "fitted": {
            name: _storable(value) for name, value in fitted.items() if is_fitted_name(name)
        },
    }


def _storable(value: Any) -> Any:
    if isinstance(value, BaseEstimator):
        return {_INNER: _state_of(value)}
    return str(value) if isinstance(value, Path) else value


def _is_model_at(url: str) -> bool:
    with downloaded(url, "") as file:
        return kind_of(file) == KIND


def _exists(path: str | Path) -> FileExistsError:
    return FileExistsError(
        f"{path} exists. Choose another path, or overwrite=True if it holds a model."
    )


def load(path: str | Path) -> Any:
    """Read a model that `save` wrote.

    Parameters
    ----------
    path : str or Path
        File of the model, or a URL that fsspec knows, such as ``s3://bucket/model``, or a run
        folder of the command line that contains the model.

    Returns
    -------
    estimator
        Fitted estimator of the class that was saved. Parameters that say where a fit writes
        (`checkpoint`, a path as `gram`) have their defaults: a file must not decide where your fits
        write.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    ValueError
        If the path does not hold a model, or a newer version of the format, or a damaged one.
    """
    if is_remote(path):
        with downloaded(str(path), "", "model") as place:
            return _loaded(place, str(path))
    return _loaded(local_path(path), str(path))


def _loaded(path: Path, name: str) -> Any:
    """Read a model, which messages call `name`."""
    if not path.exists():
        raise FileNotFoundError(f"{name} does not exist.")
    if path.is_dir() and (path / "model").exists():
        path = path / "model"
    if kind_of(path) != KIND:
        raise ValueError(f"{name} is not a model written by daskmm, or is damaged. {_REPLACE}")
    try:
        state = read_state(path)
    except DamagedStateError as error:
        raise ValueError(f"{name} is damaged. {_REPLACE}") from error
    try:
        return _made_of(state)
    except Exception as error:
        raise ValueError(f"{name} is damaged: {error}. {_REPLACE}") from error


def _made_of(state: dict[str, Any]) -> Any:
    """Return the estimator of a state, with the estimators that it contains."""
    parameters, fitted = (
        {
            name: _made_of(value[_INNER]) if isinstance(value, dict) and _INNER in value else value
            for name, value in state[part].items()
        }
        for part in ("parameters", "fitted")
    )
    for name in fitted:
        if not is_fitted_name(name):
            raise ValueError(f"{name} is not the name of a fitted attribute")
    if state["class"] not in cluster.__all__:
        raise ValueError(f"it holds a model of unknown class {state['class']!r}")
    estimator = getattr(cluster, state["class"])(**_without_places(parameters))
    vars(estimator).update(fitted)
    if state["output"]:
        estimator.set_output(**state["output"])
    return estimator


def _without_places(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters; those that name a place to write to get their defaults."""
    return {
        name: _PLACES[name][0] if name in _PLACES and value not in _PLACES[name] else value
        for name, value in parameters.items()
    }

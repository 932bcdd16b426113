"""Save and load fitted estimators: a versioned zarr group that holds no code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from daskmm.cluster._parameters import is_fitted_name
from daskmm.numerics.columns import Expansion, MixedCoordinates
from daskmm.numerics.kernels import Kernel
from daskmm.storage.arrays import CHECKSUMMED
from daskmm.storage.atomic import restore_former, written_whole
from daskmm.storage.digests import digest
from daskmm.storage.records import decode, encode, registered
from daskmm.storage.remote import downloaded, is_remote, local_path, uploaded

E = TypeVar("E", bound=type[BaseEstimator])

FORMAT = "daskmm-model"
VERSION = 1
# Bytes of an array per stored byte, at most; zstd makes one byte of some ten thousand zeros.
_MOST_EXPANSION = 1_000_000
# Classes that `load` may make, by name.
_ESTIMATORS: dict[str, type[BaseEstimator]] = {}

# Here, because the definitions in `numerics` know nothing of storage.
for _definition in (Kernel, Expansion, MixedCoordinates):
    registered(_definition)


def registered_model(estimator: E) -> E:
    """Class decorator: let `load` make this estimator, known by its name."""
    _ESTIMATORS[estimator.__name__] = estimator
    return estimator


def save(estimator: BaseEstimator, path: str | Path, overwrite: bool) -> None:
    """Write a fitted estimator; see `MMClusterer.save`.

    A crash at any moment leaves the former model or the new one, never half of one. Callbacks, a
    random state that is not an integer, and lazy labels are not saved.
    """
    if is_remote(path):
        with uploaded(str(path), "zarr.json", replace=overwrite) as folder:
            save(estimator, folder, False)
        return
    path = local_path(path)
    restore_former(path)
    if path.exists() and not (overwrite and _is_model(path)):
        raise FileExistsError(
            f"{path} exists. Choose another path, or overwrite=True if it holds a model."
        )
    with written_whole(path, replace=overwrite) as fresh:
        try:
            _write(estimator, zarr.create_group(fresh))
        except TypeError as error:
            raise ValueError(f"The model cannot be saved. {error}") from error


def load(path: str | Path) -> Any:
    """Read a model that `save` wrote.

    Parameters
    ----------
    path : str or Path
        Also an URL that fsspec knows, such as ``s3://bucket/model``.

    Returns
    -------
    estimator
        Fitted, of the class that was saved.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    ValueError
        If it is not a model, or one of a newer version of the format, or damaged.
    """
    if is_remote(path):
        with downloaded(str(path)) as folder:
            return _loaded(folder, str(path))
    path = local_path(path)
    restore_former(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    return _loaded(path, str(path))


def _loaded(path: Path, name: str) -> Any:
    """Read a model; messages say `name`."""
    if not _is_model(path):
        raise ValueError(f"{name} is not a model written by daskmm.")
    group = zarr.open_group(path, mode="r")
    attributes: dict[str, Any] = group.attrs.asdict()
    version, kind = attributes.get("version"), attributes.get("class")
    if version != VERSION:
        raise ValueError(
            f"{name} has version {version} of the model format; this library reads {VERSION}."
        )
    if kind not in _ESTIMATORS:
        raise ValueError(f"{name} holds a model of unknown class {kind!r}.")

    def get(node: dict[str, Any]) -> NDArray:
        array: Any = group[node["array"]]
        # Sizes are looked at first: a forged one would take hours, or all of the memory.
        if array.chunks != tuple(max(1, length) for length in array.shape):
            raise ValueError(f"{node['array']} is not in one chunk")
        if array.nbytes > _MOST_EXPANSION * (array.nbytes_stored() + 1):
            raise ValueError(f"{node['array']} is larger than what is stored of it can be")
        if array.nchunks_initialized < array.nchunks:  # a missing chunk would read as zeros
            raise ValueError(f"a chunk of {node['array']} is missing")
        values = np.asarray(array[...])
        if digest(values) != node["digest"]:
            raise ValueError(f"{node['array']} has changed")
        return values

    try:
        if attributes.pop("digest") != _digest(attributes):
            raise ValueError("its description has changed")
        parts = {
            part: {key: decode(node, get) for key, node in attributes[part].items()}
            for part in ("parameters", "fitted")
        }
        estimator = _ESTIMATORS[kind](**parts["parameters"])
        vars(estimator).update(parts["fitted"])
        if attributes["output"]:
            estimator.set_output(**attributes["output"])
    except Exception as error:
        raise ValueError(f"{name} is damaged: {error}") from error
    return estimator


def _is_model(path: Path) -> bool:
    try:
        return zarr.open_group(path, mode="r").attrs.get("format") == FORMAT
    except Exception:  # whatever is there, it is not a readable group
        return False


def _write(estimator: BaseEstimator, group: zarr.Group) -> None:
    parameters = estimator.get_params(deep=False)
    parameters.pop("callbacks", None)
    if not isinstance(parameters.get("random_state"), int | np.integer | None):
        parameters["random_state"] = None
    if hasattr(parameters.get("init"), "cluster_centers_"):  # a model to start from
        parameters["init"] = parameters["init"].cluster_centers_
    fitted = {key: value for key, value in estimator.__getstate__().items() if is_fitted_name(key)}

    def put(name: str, values: NDArray) -> dict[str, Any]:
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=tuple(max(1, length) for length in values.shape),
            config={"write_empty_chunks": True},  # zeros too: a missing chunk is damage
            **CHECKSUMMED,
        )
        array[...] = values
        return {"array": name, "digest": digest(values)}

    attributes: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "class": type(estimator).__name__,
        "output": dict(getattr(estimator, "_sklearn_output_config", {})),
        "parameters": {
            key: encode(str(value) if isinstance(value, Path) else value, put, key)
            for key, value in parameters.items()
        },
        "fitted": {key: encode(value, put, key) for key, value in fitted.items()},
    }
    group.attrs.update({**attributes, "digest": _digest(attributes)})


def _digest(attributes: dict[str, Any]) -> str:
    """Return a digest of a model's description, which holds those of its arrays."""
    text = json.dumps(attributes, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()

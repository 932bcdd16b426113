"""Models on disk: a zarr group, versioned, that holds no code."""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from pathlib import Path
from typing import Any

import dask
import numpy as np
import zarr
from sklearn.base import BaseEstimator
from zarr.codecs import BytesCodec, Crc32cCodec

FORMAT = "daskmm-model"
VERSION = 1


def save(estimator: BaseEstimator, path: str | Path, overwrite: bool) -> None:
    """Write a fitted estimator; see `CenterClusterer.save`.

    The group is written beside its place and renamed into it, so that the place never holds
    half a model. Callbacks, a random state that is not a number, and lazy labels stay behind.
    """
    path = Path(path)
    if path.exists() and not (overwrite and _is_model(path)):
        raise FileExistsError(
            f"{path} exists. Choose another path, or overwrite=True if it holds a model."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        _write(estimator, zarr.create_group(fresh))
        if path.exists():
            old = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            path.rename(old)
            try:
                fresh.rename(path)
            except BaseException:
                old.rename(path)
                raise
            shutil.rmtree(old)
        else:
            fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def load(path: str | Path) -> Any:
    """Read a model that `save` wrote.

    Parameters
    ----------
    path : str or Path

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
    import daskmm

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if not _is_model(path):
        raise ValueError(f"{path} is not a model written by daskmm.")
    group = zarr.open_group(path, mode="r")
    attributes: dict[str, Any] = group.attrs.asdict()
    version, name = attributes.get("version"), attributes.get("class")
    if version != VERSION:
        raise ValueError(
            f"{path} has version {version} of the model format; this library reads {VERSION}."
        )
    classes = {
        name: cls for name in daskmm.__all__ if isinstance(cls := getattr(daskmm, name), type)
    }
    if name not in classes:
        raise ValueError(f"{path} holds a model of unknown class {name!r}.")
    try:
        estimator = classes[name](**_decode(group, attributes["parameters"]))
        for key, value in _decode(group, attributes["fitted"]).items():
            setattr(estimator, key, value)
        if attributes["output"]:
            estimator.set_output(**attributes["output"])
    except Exception as error:
        raise ValueError(f"{path} is damaged: {error}") from error
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
    fitted = {
        key: value
        for key, value in vars(estimator).items()
        if _is_fitted_name(key) and not dask.is_dask_collection(value)
    }
    group.attrs.update(
        {
            "format": FORMAT,
            "version": VERSION,
            "class": type(estimator).__name__,
            "output": dict(getattr(estimator, "_sklearn_output_config", {})),
            "parameters": {k: _encode(group, k, v) for k, v in parameters.items()},
            "fitted": {k: _encode(group, k, v) for k, v in fitted.items()},
        }
    )


def _encode(group: zarr.Group, key: str, value: Any) -> Any:
    """JSON for a value; numeric arrays go into the group, with checksums."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        array = group.create_array(
            key,
            shape=value.shape,
            dtype=value.dtype,
            chunks=tuple(max(1, length) for length in value.shape),
            serializer=BytesCodec(),
            compressors=[Crc32cCodec()],
            # A chunk that is not there would be read as zeros.
            config={"write_empty_chunks": True},
        )
        array[...] = value
        return {"array": key}
    if isinstance(value, np.ndarray):
        return {"strings": [str(item) for item in value]}
    if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        return {"history": [_encode(group, key, dataclasses.asdict(item)) for item in value]}
    if isinstance(value, dict):
        return {k: _encode(group, k, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return _encode(group, key, np.asarray(value))
    if isinstance(value, float | np.floating):
        # Exact, and valid JSON for infinities too.
        return {"float": float(value).hex()}
    if not isinstance(value, str) and hasattr(value, "__array__"):
        value = np.asarray(value)
        return value.item() if value.ndim == 0 else _encode(group, key, value)
    return value


def _decode(group: zarr.Group, values: dict[str, Any]) -> dict[str, Any]:
    return {key: _decode_one(group, value) for key, value in values.items()}


def _array(group: zarr.Group, key: str) -> zarr.Array:
    array = group[key]
    if not isinstance(array, zarr.Array):
        raise ValueError(f"{key} is not an array")
    if array.nchunks_initialized < array.nchunks:
        raise ValueError(f"a chunk of {key} is missing")
    return array


def _decode_one(group: zarr.Group, value: Any) -> Any:
    from daskmm.mm import IterationRecord

    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.asarray(_array(group, value["array"])[...])
    if "strings" in value:
        return np.asarray(value["strings"], dtype=object)
    if "history" in value:
        return [IterationRecord(**_decode(group, record)) for record in value["history"]]
    return float.fromhex(value["float"])


def _is_fitted_name(name: str) -> bool:
    """Whether an attribute is the outcome of a fit; scikit-learn keeps others of its own."""
    return (name.endswith("_") and not name.startswith("_")) or name == "_n_features_out"

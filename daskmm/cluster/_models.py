"""Models on disk: a zarr group, versioned, that holds no code."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from sklearn.base import BaseEstimator
from zarr.codecs import BytesCodec, Crc32cCodec

from daskmm.auto.bandwidth import BandwidthPath
from daskmm.auto.lam import LamPath
from daskmm.auto.n_clusters import ClusterNumberPath
from daskmm.auto.standardize import ScaleChoice
from daskmm.mean_shift.blurring import BlurringRecord
from daskmm.mm.driver import IterationRecord
from daskmm.numerics.kernels import Kernel
from daskmm.storage.atomic import flush_folder, flush_tree
from daskmm.storage.digests import digest

FORMAT = "daskmm-model"
VERSION = 1
# Records that a model may hold.
_RECORDS: dict[str, type] = {
    "BandwidthPath": BandwidthPath,
    "BlurringRecord": BlurringRecord,
    "ClusterNumberPath": ClusterNumberPath,
    "IterationRecord": IterationRecord,
    "Kernel": Kernel,
    "LamPath": LamPath,
    "ScaleChoice": ScaleChoice,
}


def save(estimator: BaseEstimator, path: str | Path, overwrite: bool) -> None:
    """Write a fitted estimator; see `CenterClusterer.save`.

    The group is written beside its place and renamed into it, so that the place never holds
    half a model; a crash between the two renames that replace a model leaves the former one
    where `load` finds it. Callbacks, a random state that is not a number, and lazy labels stay
    behind.
    """
    path = Path(path)
    _put_back(path)
    if path.exists() and not (overwrite and _is_model(path)):
        raise FileExistsError(
            f"{path} exists. Choose another path, or overwrite=True if it holds a model."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        _write(estimator, zarr.create_group(fresh))
        flush_tree(fresh)
        if path.exists():
            old = _former(path)
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
            try:
                fresh.rename(path)
            except BaseException:
                old.rename(path)
                raise
            flush_folder(path.parent)
            shutil.rmtree(old)
        else:
            fresh.rename(path)
            flush_folder(path.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _former(path: Path) -> Path:
    """Where the model of a path is while another one takes its place."""
    return path.with_name(f".{path.name}.former")


def _put_back(path: Path) -> None:
    """Put a model back whose replacement was cut short."""
    if not path.exists() and _former(path).exists():
        with contextlib.suppress(OSError):  # another process may just have done it
            _former(path).rename(path)


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
    from daskmm import cluster  # the estimators import this module

    path = Path(path)
    _put_back(path)
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
    classes = {name: getattr(cluster, name) for name in cluster.__all__}
    if name not in classes:
        raise ValueError(f"{path} holds a model of unknown class {name!r}.")
    try:
        if attributes.pop("digest") != _digest(attributes):
            raise ValueError("its description has changed")
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
    fitted = {key: value for key, value in estimator.__getstate__().items() if _is_fitted_name(key)}
    attributes: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "class": type(estimator).__name__,
        "output": dict(getattr(estimator, "_sklearn_output_config", {})),
        "parameters": {k: _encode(group, k, v) for k, v in parameters.items()},
        "fitted": {k: _encode(group, k, v) for k, v in fitted.items()},
    }
    group.attrs.update({**attributes, "digest": _digest(attributes)})


def _digest(attributes: dict[str, Any]) -> str:
    """Digest of a model's description, which holds those of its arrays."""
    text = json.dumps(attributes, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


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
        return {"array": key, "digest": digest(value)}
    if isinstance(value, np.ndarray):
        return {"strings": [str(item) for item in value]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return {"record": type(value).__name__, "fields": _encode_all(group, key, fields)}
    if isinstance(value, dict):
        return {"dict": _encode_all(group, key, value)}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, int | float | list | tuple) for item in value):
            return _encode(group, key, np.asarray(value))
        return {"list": [_encode(group, f"{key}-{i}", item) for i, item in enumerate(value)]}
    if isinstance(value, float | np.floating):
        # Exact, and valid JSON for infinities too.
        return {"float": float(value).hex()}
    if callable(value):
        raise ValueError(
            f"{key} is a function, which a file cannot hold; the model cannot be saved."
        )
    if not isinstance(value, str) and hasattr(value, "__array__"):
        value = np.asarray(value)
        return value.item() if value.ndim == 0 else _encode(group, key, value)
    return str(value) if isinstance(value, Path) else value


def _encode_all(group: zarr.Group, key: str, values: dict[str, Any]) -> dict[str, Any]:
    return {name: _encode(group, f"{key}-{name}", value) for name, value in values.items()}


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
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = np.asarray(_array(group, value["array"])[...])
        if digest(array) != value["digest"]:
            raise ValueError(f"{value['array']} has changed")
        return array
    if "strings" in value:
        return np.asarray(value["strings"], dtype=object)
    if "list" in value:
        return [_decode_one(group, item) for item in value["list"]]
    if "dict" in value:
        return _decode(group, value["dict"])
    if "record" in value:
        return _RECORDS[value["record"]](**_decode(group, value["fields"]))
    return float.fromhex(value["float"])


def _is_fitted_name(name: str) -> bool:
    """Whether an attribute is the outcome of a fit; scikit-learn keeps others of its own."""
    return (name.endswith("_") and not name.startswith("_")) or name == "_n_features_out"

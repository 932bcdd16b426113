"""Save and load fitted estimators: a versioned zarr group that holds no code."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from daskmm.cluster._fitted_values import check_fitted, is_fitted_name
from daskmm.numerics.columns import Expansion, MixedCoordinates
from daskmm.numerics.kernels import Kernel
from daskmm.storage.arrays import checksummed
from daskmm.storage.atomic import is_replaced, restore_former, written_whole
from daskmm.storage.digests import digest
from daskmm.storage.locks import reserved
from daskmm.storage.records import decode, encode, registered
from daskmm.storage.remote import (
    UNFINISHED,
    downloaded,
    exists,
    is_remote,
    local_path,
    uploaded,
)

if TYPE_CHECKING:
    import zarr

E = TypeVar("E", bound=type[BaseEstimator])

FORMAT = "daskmm-model"
VERSION = 1
# Seconds to wait for another process that is replacing the same model.
_PATIENCE = 60.0
# Parameters that can name a place to write to, and their values that do not name one. The first of
# these values is the default.
_PLACES: dict[str, tuple[str | None, ...]] = {"checkpoint": (None,), "gram": ("auto", "recompute")}
# Largest number of bytes of an array per stored byte; zstd stores ten thousand zeros in about one
# byte.
_MOST_EXPANSION = 1_000_000
# Classes that `load` may instantiate, by name.
_ESTIMATORS: dict[str, type[BaseEstimator]] = {}

# They are registered here because `numerics` does not import storage.
for _definition in (Kernel, Expansion, MixedCoordinates):
    registered(_definition)


def registered_model(estimator: E) -> E:
    """Class decorator: let `load` make this estimator, known by its name."""
    _ESTIMATORS[estimator.__name__] = estimator
    return estimator


def save(estimator: BaseEstimator, path: str | Path, overwrite: bool) -> None:
    """Write a fitted estimator; see `MMClusterer.save`.

    A crash at any moment leaves the former model or the new one, never a part of one. Processes
    that replace the same model wait for each other. Callbacks, a random state that is not an
    integer, lazy labels, and places to write to (`checkpoint`, a path as `gram`) are not saved.
    """
    if is_remote(path):
        replaced = _replaced_at(str(path)) if overwrite else None
        with uploaded(str(path), "zarr.json", replaced) as folder:
            _save(estimator, folder, False)
        return
    path = local_path(path)
    if overwrite and path.is_symlink() and path.exists():
        path = path.resolve()  # the link stays
    _settled(path)
    if not overwrite and path.exists():
        raise _exists(path)
    _save(estimator, path, overwrite)


def _save(estimator: BaseEstimator, path: Path, overwrite: bool) -> None:
    import zarr  # slow, and needed for saved models alone

    turn = _replacing(path) if overwrite else None
    with written_whole(path, replace=overwrite, turn=turn) as fresh:
        try:
            _write(estimator, zarr.create_group(fresh))
        except TypeError as error:
            raise ValueError(f"The model cannot be saved. {error}") from error


@contextmanager
def _replacing(path: Path) -> Iterator[None]:
    """Wait until no other process replaces the model; raise if the path holds anything else."""
    with reserved(path, _PATIENCE):
        restore_former(path)
        if path.exists():
            if not _is_model(path):
                raise _exists(path)
            is_part = _parts_of(path)
            for item in sorted(path.rglob("*")):
                if not is_part(item.relative_to(path).as_posix()):
                    raise FileExistsError(
                        f"{path} cannot be replaced: {item} is no part of the model. Move it away, "
                        "or choose another path."
                    )
        yield


def _exists(path: str | Path) -> FileExistsError:
    return FileExistsError(
        f"{path} exists. Choose another path, or overwrite=True if it holds a model."
    )


def _replaced_at(url: str) -> Callable[[str], object]:
    """Return a function of an object's name: whether it belongs to the model at a URL."""
    if not exists(url):
        return lambda name: False
    with downloaded(url, "zarr.json", UNFINISHED) as folder:
        if _is_model(folder):
            return _parts_of(folder)
        if not (folder / UNFINISHED).exists():
            raise _exists(url)
    return lambda name: False


def _parts_of(path: Path) -> Callable[[str], object]:
    """Return a function of the name of a file or folder: whether it is part of a model.

    Parameters
    ----------
    path : Path
        Folder with the description of the model.
    """
    described = _opened(path).attrs.asdict()
    names = {name for part in described.values() for name in _arrays_of(part)}
    arrays = {re.sub(r"[/\\]+", "/", name).strip("/") for name in names}  # as zarr writes them
    # zarr makes a group of each part of a name before a slash.
    groups = {name.rsplit("/", i)[0] for name in arrays for i in range(name.count("/") + 1)}
    known = "|".join(map(re.escape, sorted(groups)))
    chunks = "|".join(map(re.escape, sorted(arrays)))
    return re.compile(rf"(({known})(/zarr\.json)?|({chunks})/c(/0)*|zarr\.json)").fullmatch


def _arrays_of(node: Any) -> Iterator[str]:
    """Yield the names of the arrays in a description."""
    if isinstance(node, dict):
        if isinstance(name := node.get("array"), str):
            yield name
        for item in node.values():
            yield from _arrays_of(item)
    elif isinstance(node, list):
        for item in node:
            yield from _arrays_of(item)


def load(path: str | Path) -> Any:
    """Read a model that `save` wrote.

    Parameters
    ----------
    path : str or Path
        Folder of the model, or a URL that fsspec knows, such as ``s3://bucket/model``, or a run
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
        with downloaded(str(path)) as folder:
            return _loaded(_model_in(folder), str(path))
    path = _model_in(local_path(path))
    while True:
        before = _identity(path)
        try:
            return _loaded(path, str(path))
        except (FileNotFoundError, ValueError):
            # Another process may have replaced the model while it was read.
            after = _identity(path)
            if after == before and (after is not None or not _settled(path)):
                raise


def _model_in(path: Path) -> Path:
    """Return the path of the model in a run folder of the command line; other paths unchanged."""
    inside = path / "model"
    is_run = not (path / "zarr.json").exists() and (inside.exists() or is_replaced(inside))
    return inside if is_run else path


def _identity(path: Path) -> Any:
    """Return a value that changes if the folder at a path is replaced; None without a folder."""
    try:
        found = path.stat()
        described = (path / "zarr.json").stat()
    except OSError:
        return None if not path.exists() else "no model"
    return found.st_dev, found.st_ino, described.st_ino, described.st_mtime_ns


def _settled(path: Path) -> bool:
    """Return whether a missing model was being replaced; restore it if the writer has died."""
    if not is_replaced(path):
        return False
    if not path.exists():
        with contextlib.suppress(OSError), reserved(path, _PATIENCE):
            restore_former(path)
    return path.exists()


def _loaded(path: Path, name: str) -> Any:
    """Read a model; messages say `name`."""
    if not path.exists():
        raise FileNotFoundError(f"{name} does not exist.")
    if not _is_model(path):
        raise ValueError(f"{name} is not a model written by daskmm.")
    group = _opened(path)
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
        # Sizes are checked first: a forged one could take hours, or all of the memory.
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
        check_fitted(parts["fitted"])
        estimator = _ESTIMATORS[kind](**_without_places(parts["parameters"]))
        vars(estimator).update(parts["fitted"])
        if attributes["output"]:
            estimator.set_output(**attributes["output"])
    except Exception as error:
        raise ValueError(f"{name} is damaged: {error}") from error
    return estimator


def _opened(path: Path) -> zarr.Group:
    import zarr

    return zarr.open_group(path, mode="r")


def _is_model(path: Path) -> bool:
    try:
        return _opened(path).attrs.get("format") == FORMAT
    except Exception:  # there is no readable group
        return False


def _write(estimator: BaseEstimator, group: zarr.Group) -> None:
    parameters = _without_places(estimator.get_params(deep=False))
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
            config={"write_empty_chunks": True},  # so a missing chunk means damage
            **checksummed(),
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


def _without_places(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters; those that name a place to write to get their defaults."""
    return {
        name: _PLACES[name][0] if name in _PLACES and value not in _PLACES[name] else value
        for name, value in parameters.items()
    }


def _digest(attributes: dict[str, Any]) -> str:
    """Return a digest of a model's description, which contains the digests of its arrays."""
    text = json.dumps(attributes, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()

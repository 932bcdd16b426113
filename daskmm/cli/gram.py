"""The commands ``daskmm gram build | verify | repair | info``."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from daskmm.cli.commands import UserError
from daskmm.cluster.kernel import root_mean_squared_distance
from daskmm.data.blocks import as_dask_array, layout_of, row_blocks
from daskmm.data.files import open_data
from daskmm.data.names import shell_word
from daskmm.engine.first_pass import first_pass
from daskmm.engine.passes import Passes
from daskmm.gram.build import CHANGED, TILE_ROWS, build, repair, verify
from daskmm.gram.rows import KernelRows, kernel_rows
from daskmm.gram.store import GramStore, GramStoreError
from daskmm.numerics.kernels import SCALED, Kernel, are_movable
from daskmm.numerics.rows import Coordinates
from daskmm.storage.locks import reserved
from daskmm.storage.readable import readable_bytes
from daskmm.storage.remote import local_path

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """Result of a command: as values for JSON, as text, and as an exit code."""

    found: dict[str, Any]
    text: str
    exit_code: int = 0


def _build(arguments: argparse.Namespace) -> Answer:
    path = local_path(arguments.out, "A Gram matrix")
    with reserved(path):
        return _build_at(path, arguments)


def _build_at(path: Path, arguments: argparse.Namespace) -> Answer:
    # A store that was begun keeps its mean, scale and bandwidth, so that unchanged rows match and
    # changed rows are reported.
    begun = GramStore(path) if path.exists() else None
    missing = begun.missing() if begun else None
    table = _open(arguments.input, arguments.columns)
    _check_room(path, table.shape[0], arguments.dtype, begun)
    origin = _origin(table, arguments, begun)
    store = build(
        path,
        _model_rows(table, origin),
        _kernel(arguments, origin),
        dtype=arguments.dtype,
        tile_rows=begun.manifest.tile_rows if begun else TILE_ROWS,
        origin=origin,
    )
    n_written = len(store.tiles) if missing is None else len(missing)
    found = {**_described(store), "n_written": n_written}
    done = "now written" if n_written else "nothing to do"
    counted = f"{n_written:,} of {len(store.tiles):,} tiles were missing; {done}"
    return Answer(
        found, f"{_in_words(store)}\n{counted}\nnext: daskmm gram verify {shell_word(path)}"
    )


def _verify(arguments: argparse.Namespace) -> Answer:
    store = GramStore(arguments.store)
    rows = None if arguments.data is None else _rows_of(store, arguments.data)
    faults = verify(store.path, rows)
    found = {"store": arguments.store, "n_tiles": len(store.tiles), "faults": faults}
    if not faults:
        same = "" if rows is None else ", and the data are those they were made from"
        return Answer(found, f"all {len(store.tiles):,} tiles are sound{same}")
    lines = [
        f"{fault}: {', '.join(name for name in faults if faults[name] == fault)}"
        for fault in dict.fromkeys(faults.values())
    ]
    changed = CHANGED in faults.values()
    repairing = f"daskmm gram repair {shell_word(arguments.store)} INPUT"
    mend = "build a new store" if changed else repairing
    return Answer(found, "\n".join([*lines, f"next: {mend}"]), exit_code=1)


def _repair(arguments: argparse.Namespace) -> Answer:
    store = GramStore(arguments.store)
    described = dict(store.manifest.kernel)
    if "function" in described:
        raise UserError(
            f"the kernel of {arguments.store} is the function {described['function']}, which is "
            "not known here. Call daskmm.gram.build.repair from Python."
        )
    mended = repair(store.path, _rows_of(store, arguments.input), Kernel(**described))
    found = {"store": arguments.store, "mended": mended}
    return Answer(found, f"mended: {', '.join(mended)}" if mended else "nothing to mend")


def _info(arguments: argparse.Namespace) -> Answer:
    store = GramStore(arguments.store)
    return Answer(_described(store), _in_words(store))


COMMANDS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "build": _build,
    "verify": _verify,
    "repair": _repair,
    "info": _info,
}


def _open(source: str, columns: Sequence[str] | None) -> da.Array:
    return as_dask_array(open_data(source, columns=columns), source)


def _check_room(path: Path, n_rows: float, dtype: str, begun: GramStore | None) -> None:
    """Refuse a store for which the disk has no room; an unknown number of rows is NaN."""
    held = begun.bytes_on_disk if begun else 0
    needed = n_rows**2 / 2 * np.dtype(dtype).itemsize - held
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise UserError(
            f"{path} has room for {readable_bytes(free)}; the matrix takes "
            f"{readable_bytes(needed)}{' more' if begun else ''}. Free space, or choose another "
            "--out."
        )


def _origin(
    table: da.Array, arguments: argparse.Namespace, begun: GramStore | None
) -> dict[str, Any]:
    """Return how the rows of the kernel are computed: as in a begun store, or from the input."""
    asked = {"standardize": arguments.standardize, "columns": arguments.columns}
    if begun is None or begun.origin is None:
        # This is the first pass of the estimators, so that their rows have the same bits.
        centered = arguments.standardize or are_movable([arguments.kernel])
        passes = Passes(row_blocks(table))
        survey = first_pass(passes, 1, arguments.standardize, seed=0, centered=centered)
        return {
            **asked,
            "mean": survey.coordinates.mean.tolist(),
            "scale": survey.coordinates.scale.tolist(),
            "bandwidth": "auto" if arguments.bandwidth == "auto" else "given",
            "root_mean_squared_distance": root_mean_squared_distance(survey),
        }
    for name, value in asked.items():
        if begun.origin[name] != value:
            raise GramStoreError(
                f"{arguments.out} holds another Gram matrix: {name} is {begun.origin[name]} there "
                f"and {value} here."
            )
    return begun.origin


def _kernel(arguments: argparse.Namespace, origin: dict[str, Any]) -> Kernel:
    bandwidth = arguments.bandwidth
    if bandwidth == "auto":
        bandwidth = origin["root_mean_squared_distance"]
    for name, value in (("bandwidth", bandwidth), ("degree", arguments.degree)):
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"--{name} must be positive and finite; got {value}.")
    if not math.isfinite(arguments.coef0):
        raise UserError(f"--coef0 must be finite; got {arguments.coef0}.")
    return Kernel(arguments.kernel, bandwidth, arguments.degree, arguments.coef0)


def _rows_of(store: GramStore, source: str) -> KernelRows:
    """Return the rows of an input in the coordinates of a store."""
    if store.origin is None:
        raise UserError(
            f"{store.path} was not built by 'daskmm gram build' and does not say how its rows "
            "came from the data. Use daskmm.gram.build from Python."
        )
    return _model_rows(_open(source, store.origin["columns"]), store.origin)


def _model_rows(table: da.Array, origin: dict[str, Any]) -> KernelRows:
    coordinates = Coordinates(np.array(origin["mean"]), np.array(origin["scale"]))
    if table.shape[1] != len(coordinates.mean):
        # The store reports that the shape differs.
        coordinates = Coordinates.identity(table.shape[1])
    return kernel_rows(table, layout_of(table), coordinates)


def _described(store: GramStore) -> dict[str, Any]:
    manifest, origin = store.manifest, store.origin or {}
    return {
        "store": str(store.path),
        "n_rows": manifest.n_rows,
        "n_features": manifest.n_features,
        "kernel": manifest.kernel,
        "dtype": manifest.dtype,
        "standardize": origin.get("standardize"),
        "bandwidth": origin.get("bandwidth"),
        "columns": origin.get("columns"),
        "tile_rows": manifest.tile_rows,
        "n_tiles": len(store.tiles),
        "n_missing": len(store.missing()),
        "bytes": store.bytes_on_disk,
        "daskmm": manifest.library,
    }


def _in_words(store: GramStore) -> str:
    manifest, missing = store.manifest, len(store.missing())
    lines = [
        f"{store.path}: Gram matrix of {manifest.n_rows:,} rows × {manifest.n_features:,} features",
        f"kernel: {_kernel_in_words(store)}",
        f"{len(store.tiles):,} tiles of {manifest.tile_rows:,} rows, {manifest.dtype}, "
        f"{readable_bytes(store.bytes_on_disk)}; "
        + (f"{missing:,} missing" if missing else "complete"),
        f"begun by daskmm {manifest.library}",
    ]
    return "\n".join(lines)


def _kernel_in_words(store: GramStore) -> str:
    kernel, origin = store.manifest.kernel, store.origin or {}
    parts = [str(kernel.get("function", kernel["name"]))]
    if kernel["name"] in SCALED:
        automatic = origin.get("bandwidth") == "auto"
        rule = " (root mean squared distance)" if automatic else ""
        parts.append(f"bandwidth {kernel['bandwidth']:.6g}{rule}")
    if kernel["name"] == "polynomial":
        parts.append(f"degree {kernel['degree']:g}, coef0 {kernel['coef0']:g}")
    if kernel["unit_diagonal"]:
        parts.append("unit diagonal")
    if origin.get("standardize"):
        parts.append("of standardised features")
    return ", ".join(parts)

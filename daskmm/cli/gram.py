"""The commands ``daskmm gram verify | info``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daskmm.data.names import counted
from daskmm.gram.build import verify
from daskmm.gram.store import GramStore
from daskmm.numerics.kernels import SCALED
from daskmm.storage.readable import readable_bytes


@dataclass(frozen=True)
class Answer:
    """Result of a command: as values for JSON, as text, and as an exit code."""

    found: dict[str, Any]
    text: str
    exit_code: int = 0


def _verify(arguments: argparse.Namespace) -> Answer:
    store = GramStore(arguments.store)
    faults = verify(store.path)
    found = {"store": arguments.store, "n_tiles": len(store.tiles), "faults": faults}
    if not faults:
        return Answer(found, f"all {len(store.tiles):,} tiles are sound")
    lines = [
        f"{fault}: {', '.join(name for name in faults if faults[name] == fault)}"
        for fault in dict.fromkeys(faults.values())
    ]
    mended = "a kernel fit with this store as --gram computes them again"
    return Answer(found, "\n".join([*lines, mended]), exit_code=1)


def _info(arguments: argparse.Namespace) -> Answer:
    store = GramStore(arguments.store)
    return Answer(_described(store), _in_words(store))


COMMANDS: dict[str, Callable[[argparse.Namespace], Answer]] = {"verify": _verify, "info": _info}


def _described(store: GramStore) -> dict[str, Any]:
    manifest = store.manifest
    return {
        "store": str(store.path),
        "n_rows": manifest.n_rows,
        "n_features": manifest.n_features,
        "kernel": manifest.kernel,
        "dtype": manifest.dtype,
        "tile_rows": manifest.tile_rows,
        "n_tiles": len(store.tiles),
        "n_missing": len(store.missing()),
        "bytes": store.bytes_on_disk,
        "daskmm": manifest.library,
    }


def _in_words(store: GramStore) -> str:
    manifest, missing = store.manifest, len(store.missing())
    lines = [
        f"{store.path}: Gram matrix of {manifest.n_rows:,} rows × "
        f"{counted(manifest.n_features, 'feature')}",
        f"kernel: {_kernel_in_words(store)}",
        f"{len(store.tiles):,} tiles of {manifest.tile_rows:,} rows, {manifest.dtype}, "
        f"{readable_bytes(store.bytes_on_disk)}; "
        + (f"{missing:,} missing" if missing else "complete"),
        f"begun by daskmm {manifest.library}",
    ]
    return "\n".join(lines)


def _kernel_in_words(store: GramStore) -> str:
    kernel = store.manifest.kernel
    parts = [str(kernel.get("function", kernel["name"]))]
    if kernel["name"] in SCALED:
        parts.append(f"bandwidth {kernel['bandwidth']:.6g}")
    if kernel["name"] == "polynomial":
        parts.append(f"degree {kernel['degree']:g}, coef0 {kernel['coef0']:g}")
    if kernel["unit_diagonal"]:
        parts.append("unit diagonal")
    return ", ".join(parts)

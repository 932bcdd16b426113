"""Column names that dask arrays carry, such as those of the variables of an AnnData store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daskmm._dask import da
from daskmm.storage.zarr_stores import zarr_store

# Attribute of dask arrays that holds the names of their columns.
_NAMES = "_daskmm_names"


def with_names(table: da.Array, names: Sequence[str] | None) -> da.Array:
    """Set the column names of a dask array, unless they are None; return the array."""
    if names is not None and len(names) == table.shape[1]:
        setattr(table, _NAMES, _distinct(names))
    return table


def header_of(table: Any) -> Any:
    """Return an empty frame with the column names of a dask array, or the array if it has none."""
    names = getattr(table, _NAMES, None)
    if names is None:
        return table
    try:
        import pandas as pd
    except ImportError:  # scikit-learn takes names only from frames
        return table
    return pd.DataFrame(columns=names, dtype=table.dtype)


def variable_names(path: str, component: str) -> list[str] | None:
    """Return the column names of X, raw/X or a layer of an AnnData store, or None.

    `component` is the path of the array, or of the sparse group, within the store.
    """
    place, _, name = component.strip("/").rpartition("/")
    if place == "layers":
        place, name = "", "X"
    if name != "X" or place not in ("", "raw"):
        return None
    variables = f"{place}/var" if place else "var"
    import zarr  # zarr is slow to import

    try:
        group: Any = zarr.open_group(zarr_store(path), path=variables, mode="r")
        index: Any = group[str(group.attrs["_index"])]
        if not isinstance(index, zarr.Array):
            return None
        values: Any = index[:]
        return [str(value) for value in values]
    except Exception:  # the rows can be read without names
        return None


def _distinct(names: Sequence[str]) -> list[str]:
    """Number repeated names, as anndata's `var_names_make_unique` does."""
    known, found = set(names), []
    if len(known) == len(names):
        return list(names)
    seen: dict[str, int] = {}
    for name in names:
        own = name
        if name in seen:
            while own in known:
                seen[name] += 1
                own = f"{name}-{seen[name]}"
            known.add(own)
        seen.setdefault(name, 0)
        found.append(own)
    return found

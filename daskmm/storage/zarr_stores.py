"""Addresses of zarr stores that other packages than fsspec open: icechunk and obstore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SCHEMES = ("icechunk+", "obstore+")


def is_zarr_store(path: str) -> bool:
    """Return whether a path is the address of a store of icechunk or obstore."""
    return path.startswith(_SCHEMES)


def zarr_store(path: str) -> Any:
    """Return what zarr opens for a path: a store of icechunk or obstore, or the path itself.

    The path is a path or URL; or ``icechunk+file:///repository`` or
    ``icechunk+s3://bucket/prefix``, for the latest snapshot of the branch "main"; or
    ``obstore+URL``, for any URL that obstore knows. It raises ImportError if the package of the
    address is not installed, and ValueError if the package has no store for the address.
    """
    if not is_zarr_store(path):
        return path
    package, _, url = path.partition("+")
    try:
        return {"icechunk": _icechunk, "obstore": _obstore}[package](url)
    except ImportError as error:
        raise ImportError(f"{path} needs {package}: pip install {package}.") from error


def _icechunk(url: str) -> Any:
    import icechunk

    scheme, _, place = url.partition("://")
    bucket, _, prefix = place.partition("/")
    storages: dict[str, Callable[[], Any]] = {
        "file": lambda: icechunk.local_filesystem_storage(place),
        "s3": lambda: icechunk.s3_storage(bucket=bucket, prefix=prefix, from_env=True),
        "gs": lambda: icechunk.gcs_storage(bucket=bucket, prefix=prefix, from_env=True),
    }
    if scheme not in storages:
        raise ValueError(
            f"icechunk+{url} cannot be opened: addresses are icechunk+file:///…, icechunk+s3://… "
            "and icechunk+gs://…. Pass other stores to dask.array.from_zarr in Python."
        )
    return icechunk.Repository.open(storages[scheme]()).readonly_session("main").store


def _obstore(url: str) -> Any:
    from obstore.store import from_url
    from zarr.storage import ObjectStore

    return ObjectStore(from_url(url), read_only=True)

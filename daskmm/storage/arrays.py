"""Zarr arrays with checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CHECKSUM_BYTES = 4


def create_array(
    path: Path,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: Any,
    shards: tuple[int, ...] | None = None,
) -> Any:
    """Create an uncompressed zarr array whose chunks carry checksums.

    Chunks that were never written read as NaN, as -1 if the dtype is a signed integer, and as 0
    otherwise. The folder is new, and may lie in that of a zarr group. `shards` is the shape of a
    file of several chunks.
    """
    import zarr  # zarr is slow to import
    from zarr.codecs import BytesCodec, Crc32cCodec

    return zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype=dtype,
        fill_value={"f": np.nan, "i": -1}.get(np.dtype(dtype).kind, 0),
        zarr_format=3,
        serializer=BytesCodec(),
        compressors=[Crc32cCodec()],
    )

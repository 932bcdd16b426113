"""Zarr arrays with checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CHECKSUM_BYTES = 4


def create_array(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any) -> Any:
    """Create an uncompressed zarr array whose chunks carry checksums.

    Chunks that were never written read as NaN, or as -1 if the dtype is an integer. The folder is
    new, and may lie in that of a zarr group.
    """
    import zarr  # zarr is slow to import
    from zarr.codecs import BytesCodec, Crc32cCodec

    return zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        fill_value=np.nan if np.dtype(dtype).kind == "f" else -1,
        zarr_format=3,
        serializer=BytesCodec(),
        compressors=[Crc32cCodec()],
    )

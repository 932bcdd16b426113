"""What goes to disk: whole or not at all, in chunks with checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec


def create_array(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any) -> Any:
    """An uncompressed zarr array whose chunks carry checksums and whose gaps are no data.

    Parameters
    ----------
    path : Path
    shape, chunks : tuple of int
    dtype : numpy dtype
        The fill value is NaN for floats, -1 for integers.

    Returns
    -------
    zarr Array
    """
    return zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        fill_value=np.nan if np.dtype(dtype).kind == "f" else -1,
        serializer=BytesCodec(),
        compressors=[Crc32cCodec()],
        zarr_format=3,
    )

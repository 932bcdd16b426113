"""JSON that any reader accepts: no NaN, no infinities."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return a value in JSON's own types; NaN and infinities become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text, with None for NaN and infinities."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)

"""Sizes and durations in words."""

from __future__ import annotations


def readable_bytes(count: float | None) -> str:
    """Format a number of bytes, e.g. "1.5 GB" (powers of ten)."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # 1000 after rounding gets the next unit
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 999.5 else f"{count:,.0f} TB"


def readable_seconds(seconds: float) -> str:
    """Format a duration, e.g. "4 min 10 s"."""
    if seconds < 1e-4:
        return "0 s"
    if seconds < 9.5:
        return f"{seconds:.2g} s"
    total = round(seconds)
    hours, minutes, rest = total // 3600, total % 3600 // 60, total % 60
    if hours:
        return f"{hours:,} h {minutes} min"
    if minutes:
        return f"{minutes} min {rest} s"
    return f"{rest} s"

"""Numbers, sizes and durations as people write them."""

from __future__ import annotations

import math
from datetime import date, timedelta

# Numbers beyond these have an exponent.
_SMALL, _LARGE = 1e-4, 1e15
_MONTHS = "January February March April May June July August September October November December"
_YEAR = 365.25  # days
# Dates are spread over the year if their mean direction on its circle is shorter than this.
_SPREAD_OVER_YEAR, ALL_YEAR = 0.3, "all year"
_UNITS = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"))


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


def readable_number(value: float, spread: float | None = None) -> str:
    """Format a number, e.g. "217", "6.9", "0.0042", "1,234", "1.23 million".

    Three digits are kept, and all digits before the decimal point; or as many decimals as show two
    digits of `spread`, the size of the differences that matter.
    """
    if not math.isfinite(value):
        return str(value)
    size = abs(value) if spread is None else abs(spread)
    largest = max(abs(value), size)
    if largest >= _LARGE or 0 < largest < _SMALL:
        return f"{value:.3g}"
    unit, name = next(
        ((unit, name) for unit, name in _UNITS if largest >= unit and (size >= 0.01 * unit)),
        (1.0, ""),
    )
    value, size = value / unit, size / unit
    kept = 2 if spread is None else 1
    decimals = min(max(kept - math.floor(math.log10(size)), 0), 12) if size > 0 else 0
    text = f"{value:,.{decimals}f}"
    if spread is None and "." in text:
        text = text.rstrip("0").rstrip(".")
    if not text.strip("-0."):
        return text.removeprefix("-")
    return text + name


def readable_share(share: float) -> str:
    """Format a share in percent, e.g. "42%", "0.4%", or "under 0.1%" of one that is not 0."""
    share = round(share, 9) + 0.0  # removes the sign of −0
    if 0 < share < 0.0005:
        return "under 0.1%"
    if 0.9995 < share < 1:
        return "over 99.9%"
    return f"{share:.1%}" if 0 < share < 0.0995 or 0.995 <= share < 1 else f"{share:.0%}"


def readable_day_of_year(cos: float, sin: float) -> str:
    """Format the mean direction of dates on the circle of the year, e.g. "28 May".

    1 January has the angle 0. Dates with a short mean direction are of `ALL_YEAR`.
    """
    if math.hypot(cos, sin) < _SPREAD_OVER_YEAR:
        return ALL_YEAR
    # Rounding may put a direction of midnight a little before it.
    days = (math.atan2(sin, cos) / (2 * math.pi) * _YEAR + 1e-6) % _YEAR
    day = date(2023, 1, 1) + timedelta(days=min(int(days), 364))  # 2023 has no 29 February
    return f"{day.day} {_MONTHS.split()[day.month - 1]}"


def readable_day(days: float) -> str:
    """Format a number of days since 1970, e.g. "2024-10-27"."""
    return (date(1970, 1, 1) + timedelta(days=round(days))).isoformat()

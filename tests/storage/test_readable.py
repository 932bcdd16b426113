"""Numbers, sizes and durations as people write them."""

import math
from datetime import date, timedelta

import pytest

from daskmm.storage.readable import (
    readable_bytes,
    readable_day,
    readable_day_of_year,
    readable_number,
    readable_seconds,
    readable_share,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.04 s"),
        (59.7, "1 min 0 s"),
        (75, "1 min 15 s"),
        (3700, "1 h 1 min"),
        (8, "8 s"),
        (1e-6, "0 s"),
    ],
)
def test_seconds_are_formatted(seconds, text):
    assert readable_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "unknown"), (999.6e3, "1 MB"), (999.4e3, "999 kB"), (4e15, "4,000 TB")],
)
def test_bytes_are_formatted(count, text):
    assert readable_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (217.34, None, "217"),
        (6.895123456789, None, "6.9"),
        (-0.00423, None, "-0.00423"),
        (12345.6, None, "12,346"),
        (2013.4, None, "2,013"),
        (0.0, None, "0"),
        (3.2e-7, None, "3.2e-07"),
        (2013.456, 0.31, "2,013.46"),
        (6.895, 40.0, "7"),
        (-0.01, 40.0, "0"),
        (1234567.8, 1e5, "1.23 million"),
        (1234567.8, 10.0, "1,234,568"),
        (-82e9, 1.6e12, "-0.1 trillion"),
        (2e15, None, "2e+15"),
        (float("nan"), None, "nan"),
    ],
)
def test_numbers_are_formatted(value, spread, text):
    assert readable_number(value, spread) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0%"), (0.0001, "under 0.1%"), (0.012, "1.2%"), (0.42, "42%"), (0.9999, "over 99.9%")],
)
def test_shares_are_formatted(share, text):
    assert readable_share(share) == text


def test_days_are_formatted():
    assert readable_day(20023.4) == "2024-10-27"


@pytest.mark.parametrize("hours", [0.0, 12.0, 23.9])
def test_directions_of_the_year_are_the_days_that_they_come_from(hours):
    for day in range(365):
        turn = 2 * math.pi * (day + hours / 24) / 365.25
        expected = date(2023, 1, 1) + timedelta(days=day)
        found = readable_day_of_year(math.cos(turn), math.sin(turn))
        assert found == f"{expected.day} {expected:%B}"
    assert readable_day_of_year(1.0, -1e-17) == "1 January"

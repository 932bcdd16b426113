"""Sizes and durations in words."""

import pytest

from daskmm.storage.readable import readable_bytes, readable_seconds


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
def test_readable_seconds(seconds, text):
    assert readable_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "unknown"), (999.6e3, "1 MB"), (999.4e3, "999 kB"), (4e15, "4,000 TB")],
)
def test_readable_bytes(count, text):
    assert readable_bytes(count) == text

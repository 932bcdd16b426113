"""Memory and threads available."""

from daskmm.engine.resources import peak_memory_bytes


def test_peak_memory_has_a_plausible_number_of_bytes():
    assert 50e6 < peak_memory_bytes() < 50e9

"""Docstrings of the six algorithms cite equations by their numbers in print."""

import pytest

import daskmm

CITED = {
    "KMeans": ("ICML 2019", "(1)", "(6)"),
    "PowerKMeans": ("ICML 2019", "(8)", "(9)", "Algorithm 1"),
    "EntropyPowerKMeans": ("AISTATS 2020", "(7)", "(10)", "(11)", "Algorithm 1"),
    "KernelPowerKMeans": ("By All Means", "(4)", "(7)", "Algorithm 1"),
    "MultiKernelPowerKMeans": ("By All Means", "(8)", "(9)", "Algorithm 2"),
    "WeightedBlurringMeanShift": ("AAAI 2021", "(3)", "(4)", "Algorithm 1", "section 2.3"),
}


@pytest.mark.parametrize("name", CITED)
def test_references_have_the_numbers_of_equations(name):
    references = getattr(daskmm, name).__doc__.split("References")[1].split("Examples")[0]
    assert [number for number in CITED[name] if number not in references] == []

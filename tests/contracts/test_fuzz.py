"""Thousands of random inputs: each gives a model that keeps its promises, or a clear refusal."""

from collections import Counter

import pytest
from _fuzz import run, run_updates

TOGETHER = 100


def run_all(seeds, run=run):
    """Kinds of what came of some inputs; an error names its seed."""
    outcomes = Counter()
    for seed in seeds:
        try:
            found = run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        found = [found] if isinstance(found, str) else found
        outcomes.update(outcome.split(":")[0] for outcome in found)
    return outcomes


def test_a_few_random_inputs():
    outcomes = run_all(range(20))
    assert outcomes["fitted"] > 5


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))
def test_many_random_inputs_are_fitted_or_refused(part):
    outcomes = run_all(range(part * TOGETHER, (part + 1) * TOGETHER))
    assert outcomes["fitted"] > TOGETHER // 4


def test_a_few_random_updates():
    outcomes = run_all(range(10), run_updates)
    assert outcomes["fitted"] > 5


@pytest.mark.long
def test_many_random_updates_are_made_or_refused():
    outcomes = run_all(range(TOGETHER), run_updates)
    assert outcomes["fitted"] > TOGETHER // 2

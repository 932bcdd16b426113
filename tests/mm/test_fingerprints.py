"""What checkpoints say of the fit that they belong to, and how two fits differ in words."""

import pytest

from daskmm.mm.fingerprints import differences


@pytest.mark.parametrize(
    ("there", "here", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a is 1 there and 2 here"]),
        ({"a": 1}, {}, ["a is not known here"]),
        ({}, {"a": 1}, ["a is not known there"]),
        ({"a": None}, {"a": 2}, ["a is None there and 2 here"]),
        ({"max_iter": 3}, {"max_iter": 5}, []),
        ({"max_iter": 5}, {"max_iter": 3}, ["max_iter is 5 there and 3 here"]),
        ({"a": 1.0}, {"a": 1.0 + 1e-12}, []),
    ],
)
def test_differences_are_listed_in_words(there, here, found):
    assert differences(there, here) == found

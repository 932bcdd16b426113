"""State files and the JSON of records: what is written is read, and nothing else."""

import dataclasses
import json

import numpy as np
import pytest
from _support import n_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from daskmm.mm.problem import IterationRecord
from daskmm.storage.records import decode, encode, read_state, registered, write_state


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "state"
    write_state(path, {"a": np.arange(3.0), "b": [1, "x", None, np.inf]})
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 3):
        harmed = bytearray(data)
        harmed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(harmed))
        with pytest.raises(ValueError, match=r"damaged|version"):
            read_state(path)


def test_what_is_neither_number_nor_text_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"cannot contain a function \(f\)"):
        write_state(tmp_path / "state", {"f": lambda: None})
    with pytest.raises(TypeError, match="cannot contain a ndarray"):
        write_state(tmp_path / "state", np.array([object()]))
    assert not (tmp_path / "state").exists()


@registered
@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A record of another module."""

    x: int


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A record that was not registered."""

    x: int


def test_records_that_are_not_known_are_not_made(tmp_path):
    write_state(tmp_path / "state", [Unknown(1)])
    with pytest.raises(ValueError, match="cannot read: 'Unknown'"):
        read_state(tmp_path / "state")
    write_state(tmp_path / "state", [Elsewhere(1)])
    assert read_state(tmp_path / "state") == [Elsewhere(1)]


numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
arrays = hnp.arrays(
    st.sampled_from(["f8", "f4", "f2", "i4", "i8", "?", "u1", "u8"]), hnp.array_shapes(min_side=0)
)
records = st.builds(Elsewhere, st.integers()) | st.builds(
    IterationRecord, *[st.integers(), st.text(), *[st.floats()] * 4, st.integers(), st.floats()],
    st.integers(), st.booleans(),
)  # fmt: skip
values = st.recursive(
    numbers | arrays | records,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.lists(records)
    ),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and same(vars(a), vars(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@settings(max_examples=n_examples(60), deadline=None)
@given(value=values)
def test_a_state_that_is_written_and_read_is_unchanged(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("states") / "state"
    write_state(path, value)
    assert same(read_state(path), value)


@settings(max_examples=n_examples(60), deadline=None)
@given(value=values)
def test_the_json_of_a_model_is_valid_anywhere(value):
    arrays = []

    def put(name, array):
        arrays.append(array)
        return {"array": len(arrays) - 1}

    text = json.dumps(encode(value, put), allow_nan=False)
    assert same(decode(json.loads(text), lambda node: arrays[node["array"]]), value)


def test_arrays_of_names_are_decoded_as_objects():
    names = np.array(["alpha", "épsilon"], dtype=object)
    again = decode(encode(names, put=None), get=None)
    assert again.dtype == object
    assert again.tolist() == names.tolist()

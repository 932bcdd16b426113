"""Sums of the calls of a task, and what is sent to it."""

import copy
import pickle

import pytest
from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize

from daskmm.engine import worker_task
from daskmm.engine.graph import GroupTasks
from daskmm.engine.grouping import consecutive_groups, without_data
from daskmm.engine.worker_task import Call, Group, Parcel, merge, n_records, run_pickled


def group_of(numbers, n_calls=16):
    calls = tuple(Call(number, (number,), (), ()) for number in numbers)
    return Group((calls,), (), (), n_calls)


class Sum(list):
    any_order = True

    def __add__(self, other):
        return Sum(super().__add__(other))


@pytest.mark.parametrize("some", [range(0, 16, 2), [0, 1, 2, 5, 15]])
@pytest.mark.parametrize(("record", "any_order"), [(Sum, True), (Sum, False), (list, True)])
def test_records_are_added_as_they_come_if_they_may_be(monkeypatch, record, any_order, some):
    def function(number):
        return record([number])

    monkeypatch.setattr(pickle, "loads", lambda value: value)
    monkeypatch.setattr(worker_task, "unpacked", lambda group: group)
    others = [number for number in range(16) if number not in some]
    parcel, few = Parcel((function, ()), any_order), record is Sum and any_order
    found = [run_pickled(group_of(calls), parcel) for calls in (others, some)]
    for calls, each in zip((others, some), found, strict=True):
        assert (each.unordered is not None, len(each.parts)) == (
            (True, 0) if few else (False, n_records(calls, 16))
        )
    whole = merge(found)
    assert list(whole.parts) == [0]
    assert whole.unordered is None
    assert sorted(whole.total) == [*range(16)]
    assert few or whole.total == [*range(16)]


@pytest.mark.parametrize(
    ("groups", "scattered"),
    [
        ((range(0, 40, 2), range(1, 40, 2)), True),
        (([6, 8], [*range(6), 7, *range(9, 40)]), True),
        ((range(20), range(20, 40)), False),
        ((range(25), range(25, 40)), False),
        (consecutive_groups(1000, 7), False),
    ],
)
def test_groups_of_every_second_call_are_scattered(groups, scattered):
    arguments = [(number,) for number in range(max(map(max, groups)) + 1)]
    tasks = GroupTasks({}, arguments, without_data(groups), False)
    assert tasks.are_scattered == scattered


def test_a_parcel_reports_a_small_size_to_the_scheduler():
    parcel = Parcel(bytes(1 << 20), True)
    assert sizeof(parcel) < 100
    header, frames = serialize(parcel)
    assert deserialize(header, frames) == copy.deepcopy(parcel) == parcel

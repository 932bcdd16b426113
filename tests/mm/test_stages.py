"""Lists of stages: order, repetitions, stops, journals and costs."""

from dataclasses import dataclass, replace

import pytest

from daskmm.mm.context import FitContext
from daskmm.mm.stages import Cost, Repeat, Stage, costs_of, run_stages


@dataclass(frozen=True)
class Toy:
    context: FitContext
    done: tuple[str, ...] = ()


def made(value):
    """A stage function that keeps a value in the journal."""

    def run(fit):
        return replace(fit, done=(*fit.done, fit.context.journal.once(lambda: value)))

    return run


def stopping(fit):
    fit.context.journal.keep("half", iterations=1)
    fit.context.stop(StopIteration())
    return replace(fit, done=(*fit.done, "half"))


def test_stages_are_run_in_their_order_and_kept_under_their_names():
    fit = run_stages([Stage("first", made("a")), Stage("second", made("b"))], Toy(FitContext()))
    assert fit.done == ("a", "b")
    assert fit.context.journal.stages == {"first": "a", "second": "b"}


def test_a_stage_that_is_not_needed_is_left_out():
    stages = [
        Stage("first", made("a")),
        Stage("second", made("b"), needed=lambda fit: "a" not in fit.done),
    ]
    assert run_stages(stages, Toy(FitContext())).done == ("a",)


def test_repeated_stages_end_at_their_condition_or_after_the_most_rounds():
    again = Stage("again", made("a"))
    enough = Repeat((again,), until=lambda fit: len(fit.done) == 2, most=9)
    fit = run_stages([enough], Toy(FitContext()))
    assert fit.done == ("a", "a")
    assert fit.context.journal.stages == {"again": "a", "again, 2": "a"}
    never = Repeat((again,), until=lambda fit: False, most=3)
    assert len(run_stages([never], Toy(FitContext())).done) == 3


def test_after_a_stop_only_the_stages_that_end_a_fit_are_run():
    stages = [
        Stage("first", stopping),
        Stage("second", made("b")),
        Repeat((Stage("again", made("c")),), until=lambda fit: False, most=3),
        Stage("last", made("d"), after_stop=True),
    ]
    assert run_stages(stages, Toy(FitContext())).done == ("half", "d")


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_resumed_fit_goes_on_where_the_first_was_killed(killed_at):
    calls = []

    def dear(name):
        def make():
            calls.append(name)
            if len(calls) == killed_at:
                raise RuntimeError("killed")
            return name

        return lambda fit: replace(fit, done=(*fit.done, fit.context.journal.once(make)))

    stages = [
        Stage("first", dear("a")),
        Repeat((Stage("again", dear("b")),), until=lambda fit: len(fit.done) == 3, most=5),
    ]
    first = FitContext()
    with pytest.raises(RuntimeError, match="killed"):
        run_stages(stages, Toy(first))
    second = FitContext()
    second.journal.stages = dict(first.journal.stages)
    assert run_stages(stages, Toy(second)).done == ("a", "b", "b")
    # Nothing that had been kept was made again.
    assert len(calls) == 4


def test_the_costs_of_a_list_name_its_stages_and_count_repetitions_as_they_say():
    one = Stage("one", made("a"), lambda known: Cost(1, known))
    two = Repeat((one,), until=lambda fit: True, most=5)
    three = Repeat((one,), lambda fit: True, 5, lambda known: Cost(most=10))
    found = list(costs_of([one, Stage("free", made("b")), two, three], 2))
    assert found == [
        ("one", Cost(1, 2)),
        ("free", Cost()),
        ("one", Cost(1, 2)),
        ("", Cost(most=10)),
    ]

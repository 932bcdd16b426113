"""Fits that are asked to stop."""

import pytest

from daskmm.mm.context import FitContext


def test_a_fit_is_stopped_once_there_is_an_iteration_to_return():
    reason = StopIteration("enough")
    whole = FitContext()
    context = FitContext(within=whole)
    with pytest.raises(StopIteration):
        context.stop(reason)
    assert context.stopped is whole.stopped is None
    context.journal.keep([])
    context.stop(reason)
    assert context.stopped is whole.stopped is reason
    assert not context.interrupted


def test_within_a_task_a_fit_is_stopped_at_once():
    context = FitContext(holds_interrupts=False)
    context.journal.keep([])
    with pytest.raises(KeyboardInterrupt):
        context.stop(KeyboardInterrupt())
    assert context.stopped is None

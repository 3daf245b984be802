"""The order in which a front model sends, and that nothing is lost or kept."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.transport.outbox import Outbox
from tests.unit.triton.fakes import held

TIMEOUT_S = 240.0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.booleans(), max_size=30))
def test_first_ones_go_before_all_others_and_nothing_is_lost(firsts: list[bool]) -> None:
    """While one is being sent the others gather."""
    outbox, sent = Outbox("test"), list[int]()
    with held(outbox):
        futures = [(outbox.submit_first if is_first else outbox.submit)(sent.append, number) for number, is_first in enumerate(firsts)]
    outbox.shutdown()
    assert sent == sorted(range(len(firsts)), key=lambda number: (not firsts[number], number))
    assert all(future.done() for future in futures)


def test_results_and_errors_reach_whoever_asked() -> None:
    outbox = Outbox("test")
    assert outbox.submit(divmod, 7, 2).result(TIMEOUT_S) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        outbox.submit_first(divmod, 7, 0).result(TIMEOUT_S)
    assert outbox.submit(int, "5", base=8).result(TIMEOUT_S) == 5, "an error ends nothing"
    outbox.shutdown()
    outbox.shutdown()
    with pytest.raises(RuntimeError):
        outbox.submit(int)


def test_what_is_cancelled_while_it_waits_is_not_called() -> None:
    outbox, sent = Outbox("test"), list[str]()
    with held(outbox):
        given_up = outbox.submit(sent.append, "given up")
        outbox.submit(sent.append, "sent")
        assert given_up.cancel()
    outbox.shutdown()
    assert sent == ["sent"]


def test_nothing_that_was_sent_is_kept() -> None:
    class Response:
        """Stands for a waveform."""

    outbox, response = Outbox("test"), Response()
    kept = weakref.ref(response)
    outbox.submit(lambda given: None, response).result(TIMEOUT_S)
    outbox.submit(lambda: None).result(TIMEOUT_S)  # by then the thread is done with the one before
    del response
    gc.disable()
    try:
        assert kept() is None, "without the help of the garbage collector"
    finally:
        gc.enable()
        outbox.shutdown()

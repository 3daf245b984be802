"""A late request is told how its session ended; the memory of ended sessions is bounded and holds no traceback."""

from __future__ import annotations

import pytest

from bistream.contract.ended_sessions import EndedSessions
from bistream.errors import BistreamError, BusyError, CancelledError, EngineError, SessionTimeoutError, UnknownSessionError


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (None, UnknownSessionError),
        (CancelledError("The client's stream is gone."), CancelledError),
        (SessionTimeoutError("Nothing came; start again."), SessionTimeoutError),
        (EngineError("It broke; try again."), EngineError),
        (BusyError("No memory; try again later."), BusyError),
    ],
)
def test_a_late_request_gets_the_code_of_the_end(end: BistreamError | None, kind: type[BistreamError]) -> None:
    ended = EndedSessions()
    ended.add("s", end)
    late = ended.error_of("s", "s")
    assert (type(late), late.session_id) == (kind, "s")
    assert late is not end
    assert type(ended.error_of("other", "other")) is UnknownSessionError


def test_an_id_that_is_live_again_is_forgotten() -> None:
    ended = EndedSessions()
    ended.add("s", CancelledError("x"))
    ended.discard("s")
    ended.discard("never")
    assert type(ended.error_of("s", "s")) is UnknownSessionError


def test_the_oldest_are_forgotten_first() -> None:
    ended = EndedSessions(capacity=3)
    for number in range(5):
        ended.add(str(number), CancelledError("x"))
    assert [type(ended.error_of(str(number), "s")) for number in range(5)] == [UnknownSessionError] * 2 + [CancelledError] * 3

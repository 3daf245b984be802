"""Deepgram v1, with what LiveKit, Pipecat and the SDK send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bistream.errors import BusyError, InvalidInputError
from interfaces.audio.formats import OutputFormat
from interfaces.protocols.actions import Made
from interfaces.protocols.deepgram import DeepgramOptions
from interfaces.protocols.deepgram_v1 import DeepgramV1
from interfaces.protocols.utterance_queue import MAX_WAITING_TURNS
from tests.unit.interfaces.machine import Player


def player(**options: Any) -> Player:
    return Player(DeepgramV1(DeepgramOptions("anna", OutputFormat(), **{"max_text_chars": 4096, **options})))


def send(one: Player, kind: str, **message: Any) -> list[Any]:
    return one.receive(json.dumps({"type": kind, **message}))


def flushed(number: int) -> dict[str, Any]:
    return {"type": "Flushed", "sequence_id": number}


def test_the_end_of_a_turn_is_told_behind_its_last_audio() -> None:
    """Clients take it as the end of the turn, so that audio behind it would be another one's."""
    one = player()
    send(one, "Speak", text="Hello.")
    assert send(one, "Flush") == []
    one.audio("1", Made(b"xx", 500.0, 5))
    assert one.finished("1") == [flushed(0)]


def test_text_after_a_flush_waits_for_its_turn() -> None:
    one = player()
    for text in ("First.", "Second."):
        send(one, "Speak", text=text)
        send(one, "Flush")
    assert list(one.texts) == ["1"]
    assert one.finished("1") == [flushed(0)]
    assert one.texts == {"2": "Second."} and one.ended == {"1", "2"}
    assert one.finished("2") == [flushed(1)]


def test_a_cleared_turn_has_no_end_that_would_end_the_next_one() -> None:
    """Pipecat sends Clear on an interruption, and takes the next Flushed for the turn that it speaks then."""
    one = player()
    for text in ("First.", "Second."):
        send(one, "Speak", text=text)
        send(one, "Flush")
    assert send(one, "Clear") == [{"type": "Cleared", "sequence_id": 0}]
    assert one.cancelled == ["1"] and one.texts == {}
    send(one, "Speak", text="Third.")
    send(one, "Flush")
    assert one.finished("3") == [flushed(0)]
    assert send(one, "Clear") == [{"type": "Cleared", "sequence_id": 1}]  # nothing was under way


@pytest.mark.parametrize("last", ["Close", "Clear"])
def test_a_close_without_a_flush_and_a_clear_after_it_end_at_once(last: str) -> None:
    """So LiveKit gives back a socket whose turn was interrupted: it sends both, and closes the socket itself."""
    one = player()
    send(one, "Speak", text="Long.")
    for kind in ["Close"] if last == "Close" else ["Flush", "Close", "Clear"]:
        send(one, kind)
    assert one.cancelled == ["1"] and one.closed is not None and one.closed.code == 1000


def test_speed_comes_with_the_address() -> None:
    one = player(speed=1.2)
    send(one, "Speak", text="x")
    assert one.opened[0].values == {"speed": 1.2}


def test_text_is_bounded_in_each_turn_and_turns_are() -> None:
    one = player(max_text_chars=10)
    send(one, "Speak", text="x" * 11)
    assert one.sent[-1]["type"] == "Warning" and "longer than 10" in one.sent[-1]["description"] and one.opened == []
    assert one.closed is not None and one.closed.code == 1008
    many = player()
    for _ in range(MAX_WAITING_TURNS + 2):
        send(many, "Speak", text="x")
        send(many, "Flush")
    assert many.closed is not None and many.texts == {}


@pytest.mark.parametrize(
    ("error", "code", "close"), [(BusyError("Full."), "NET-0000", 1011), (InvalidInputError("No."), "DATA-0000", 1008)]
)
def test_a_failure_is_a_warning_and_a_close_that_is_none(error: Any, code: str, close: int) -> None:
    one = player()
    send(one, "Speak", text="One.")
    assert one.failed("1", error) == [{"type": "Warning", "code": code, "description": error.sentence}]
    assert one.closed is not None and (one.closed.code, one.closed.reason) == (close, code)


def test_a_second_flush_asks_for_nothing_more() -> None:
    one = player()
    send(one, "Speak", text="First.")
    assert send(one, "Flush") == send(one, "Flush") == []
    assert one.finished("1") == [flushed(0)]


def test_a_flush_without_text_is_answered_at_once() -> None:
    """LiveKit flushes also when no word came, and waits for the answer."""
    one = player()
    assert send(one, "Flush") == [flushed(0)] and one.opened == []

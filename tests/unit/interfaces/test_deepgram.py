"""Deepgram v2: turns, and interruptions that tell the truth."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import BusyError, InvalidInputError
from interfaces.audio.formats import OutputFormat
from interfaces.protocols.actions import Made
from interfaces.protocols.deepgram import Deepgram, DeepgramOptions
from tests.unit.interfaces.machine import Player


def player() -> Player:
    return Player(Deepgram(DeepgramOptions("anna", OutputFormat(), 4096)))


def send(one: Player, kind: str, **message: Any) -> list[Any]:
    return one.receive(json.dumps({"type": kind, **message}))


def kinds(messages: list[Any]) -> list[str]:
    return ["audio" if isinstance(message, bytes) else message["type"] for message in messages]


def interrupt(one: Player, value: float | None) -> dict[str, Any]:
    offset = {} if value is None else {"playback_offset": {"type": "time_ms", "value": value}}
    (message,) = send(one, "Interrupt", **offset)
    return dict(message)


def speaking(text: str = "One two. Three four.", *chunks: tuple[float, int]) -> Player:
    one = player()
    send(one, "Speak", text=text)
    for duration, consumed in chunks:
        one.audio(one.opened[-1].speech, Made(b"xx", duration, consumed))
    return one


def test_a_turn_from_the_first_piece_to_its_metadata() -> None:
    one = player()
    assert kinds(one.sent) == ["Connected"]
    assert kinds(send(one, "Speak", text="Hel")) == ["SpeechStarted"] and send(one, "Speak", text="lo") == []
    speech = one.opened[0].speech
    assert one.texts == {speech: "Hello"}
    assert kinds(send(one, "Flush")) == ["Flushed"]
    assert kinds(one.audio(speech, Made(b"xx", 500.0, 5))) == ["audio"]
    (end,) = one.finished(speech)
    assert (end["type"], end["audio_duration_ms"], end["input_character_count"]) == ("SpeechMetadata", 500, 5)
    assert set(end["controls_applied"]) == {"pronunciations_applied", "breaks_applied", "pronunciation_warnings"}


def test_a_turn_beyond_the_limit_is_refused_and_not_cut() -> None:
    one = Player(Deepgram(DeepgramOptions("anna", OutputFormat(), max_text_chars=10)))
    (error,) = send(one, "Speak", text="x" * 11)
    assert error["type"] == "Error" and "longer than 10 characters" in error["description"]
    assert one.opened == [] and one.closed is not None


def test_an_interruption_says_what_was_heard() -> None:
    one = speaking("One two. Three four.", (400.0, 4), (400.0, 9), (400.0, 20))
    event = interrupt(one, 850)
    assert event["type"] == "SpeechInterrupted" and event["audio_played_ms"] == 850
    assert event["text_spoken"] == "One two. " and event["text_remaining"] == "Three four."
    assert one.cancelled == [one.opened[0].speech]


def test_the_offset_counts_from_the_start_of_the_session_and_must_advance() -> None:
    one = speaking("One.", (1000.0, 4))
    send(one, "Flush")
    one.finished(one.opened[0].speech)
    send(one, "Speak", text="Two.")
    one.audio(one.opened[1].speech, Made(b"xx", 1000.0, 4))
    assert interrupt(one, 1500)["text_spoken"] == ""  # 500 ms of the second turn
    send(one, "Speak", text="Three.")
    one.audio(one.opened[2].speech, Made(b"xx", 1000.0, 6))
    assert interrupt(one, 1400)["code"] == "INVALID_INTERRUPT_OFFSET"
    assert interrupt(one, 2500)["text_spoken"] == "Three."  # what was cut off counts no longer


def test_a_turn_that_is_made_but_not_yet_played_can_be_interrupted() -> None:
    one = speaking("One two.", (400.0, 4), (400.0, 8))
    send(one, "Flush")
    one.finished(one.opened[0].speech)
    assert interrupt(one, 500)["text_spoken"] == "One "


def test_the_text_heard_is_that_of_the_turn_that_plays_not_of_the_one_that_is_made() -> None:
    one = speaking("One two.", (400.0, 4), (400.0, 8))
    send(one, "Flush")
    send(one, "Speak", text="Three.")
    one.finished(one.opened[0].speech)
    one.audio(one.opened[1].speech, Made(b"xx", 500.0, 6))
    event = interrupt(one, 500)
    assert (event["text_spoken"], event["text_remaining"]) == ("One ", "two.")
    assert event["metadata"]["speech_id"] == one.opened[0].speech and one.cancelled == [one.opened[1].speech]


def test_the_totals_count_every_turn_once() -> None:
    one = speaking("One two.", (800.0, 8))
    send(one, "Flush")
    one.finished(one.opened[0].speech)
    interrupt(one, 500)
    send(one, "Speak", text="Three.")
    interrupt(one, None)
    (totals,) = send(one, "Close")
    assert totals["total_input_character_count"] == len("One two.Three.") and totals["total_audio_duration_ms"] == 500


def test_an_interruption_without_speech_is_a_harmless_warning() -> None:
    assert interrupt(player(), None)["code"] == "NO_ACTIVE_SPEECH"
    one = speaking("One.", (400.0, 4))
    send(one, "Flush")
    one.finished(one.opened[0].speech)
    assert interrupt(one, None)["code"] == "NO_ACTIVE_SPEECH"
    assert send(one, "Flush")[0]["code"] == "NO_ACTIVE_SPEECH"


def test_an_interruption_before_any_audio_ends_the_turn_and_what_waits() -> None:
    one = speaking("One.")
    send(one, "Flush")
    send(one, "Speak", text="Two.")
    assert interrupt(one, None)["audio_played_ms"] == 0
    assert len(one.cancelled) == 1 and one.texts == {}


def test_speed_holds_for_the_next_turns() -> None:
    one = player()
    assert send(one, "Configure", speed=1.2) == [{"type": "ConfigureSuccess", "applied": {"speed": 1.2}}]
    for wrong in (3, "fast", True, 0):
        assert kinds(send(one, "Configure", speed=wrong)) == ["ConfigureFailure"]
    send(one, "Speak", text="x")
    assert one.opened[0].values == {"speed": 1.2}


@pytest.mark.parametrize(
    ("error", "code", "close"), [(BusyError("Full."), "NET-0000", 1011), (InvalidInputError("No."), "DATA-0000", 1008)]
)
def test_a_failure_ends_the_connection(error: Any, code: str, close: int) -> None:
    one = speaking("One.")
    assert one.failed(one.opened[0].speech, error)[0]["code"] == code
    assert one.closed is not None and one.closed.code == close


@given(st.lists(st.tuples(st.floats(1, 2000), st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=8), st.floats(0, 1))
def test_the_text_heard_ends_with_the_last_word_that_is_over(chunks: list[tuple[float, int, int]], part: float) -> None:
    """chunks: milliseconds, characters that are certainly spoken by their end, and how much further the voice is."""
    text, times, positions, consumed = "Abc de, fghi. " * 8, [0.0], [0], 0
    one = speaking(text)
    for duration, more, further in chunks:
        consumed = min(consumed + more, len(text))
        times.append(times[-1] + duration)
        positions.append(min(max(positions[-1], consumed + further), len(text)))
        one.audio(one.opened[0].speech, Made(b"xx", duration, consumed, positions[-1]))
    event = interrupt(one, times[-1] * part)
    bound = int(np.interp(times[-1] * part + 1.0, times, positions))
    heard = event["text_spoken"]
    assert heard + event["text_remaining"] == text and len(heard) <= bound
    assert heard.split() == text.split()[: len(heard.split())], "whole words"
    rest = text[len(heard) :].split()
    assert not rest or len(heard) == bound or len(heard) + len(rest[0]) > bound, "and no word that is over is missing"


def test_of_a_server_that_tells_no_position_what_is_certain_was_heard() -> None:
    one = speaking("One two. Three four.", (400.0, 5), (400.0, 9))
    assert interrupt(one, 450)["text_spoken"] == "One "

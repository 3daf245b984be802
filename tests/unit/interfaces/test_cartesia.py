"""Cartesia's contexts, with what LiveKit, Pipecat and the SDK send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bistream.errors import BusyError, EngineError, UnknownSpeakerError
from interfaces.protocols.actions import Made
from interfaces.protocols.cartesia import MAX_REMEMBERED, Cartesia
from tests.unit.interfaces.machine import Player

SETTINGS = {
    "model_id": "sonic-3",
    "voice": {"mode": "id", "id": "anna"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16000},
    "language": "en",
    "max_buffer_delay_ms": 0,
    "generation_config": {"speed": 1.0},
}


def player(max_contexts: int = 16) -> Player:
    return Player(Cartesia(max_contexts))


def send(one: Player, transcript: str | None = None, context_id: Any = "c1", **message: Any) -> list[Any]:
    text = {} if transcript is None else {"transcript": transcript}
    return one.receive(json.dumps({**SETTINGS, **text, "context_id": context_id, **message}))


def speaking(text: str = "Hello there world.", **message: Any) -> Player:
    one = player()
    send(one, text, **{"continue": True, **message})
    return one


def times(messages: list[Any]) -> list[tuple[str, float, float]]:
    found: list[tuple[str, float, float]] = []
    for message in messages:
        if message["type"] == "timestamps":
            words = message["word_timestamps"]
            found += zip(words["words"], words["start"], words["end"], strict=True)
    return found


def test_a_context_from_its_first_piece_to_done() -> None:
    one = player()
    for piece in ("Hel", "lo wor", "ld."):
        assert send(one, piece, **{"continue": True}) == []
    assert one.texts == {"1": "Hello world."} and len(one.opened) == 1
    opened = one.opened[0]
    assert (opened.voice, opened.format.codec, opened.format.sample_rate, opened.values) == ("anna", "pcm_s16le", 16000, {})
    assert one.audio("1", Made(b"\x01\x02", 400.0, 5)) == [
        {"type": "chunk", "context_id": "c1", "done": False, "status_code": 206, "data": "AQI=", "flush_id": 1}
    ]
    assert send(one, "", **{"continue": False}) == [] and one.ended == {"1"}
    assert one.finished("1") == [{"type": "done", "context_id": "c1", "done": True, "status_code": 200}]
    assert one.closed is None


def test_livekits_end_is_a_blank_and_the_default_of_continue_is_the_end() -> None:
    one = speaking("First. ")
    send(one, " ", **{"continue": False})
    assert one.texts == {"1": "First.  "} and one.ended == {"1"}
    whole = player()
    send(whole, "All at once.")
    assert whole.ended == {"1"}


def test_the_sdks_end_names_a_voice_of_its_own() -> None:
    """``no_more_inputs`` without a voice of the context sends a fixed id, as a plain string: the one of the opening message holds."""
    one = speaking()
    assert send(one, "", voice="6ccbfb76-1fc6-48f7-b71d-91ac6298247b", **{"continue": False}) == []
    assert one.opened[0].voice == "anna" and one.ended == {"1"}
    plain = player()
    send(plain, "x", voice="anna")
    assert plain.opened[0].voice == "anna"


def test_settings_are_those_of_the_message_that_opens() -> None:
    one = player()
    config = {"speed": 1.3, "volume": 0.5, "emotion": "calm", "instructions": "In a whisper."}
    send(
        one,
        "a",
        generation_config=config,
        output_format={"container": "raw", "encoding": "pcm_f32le", "sample_rate": 44100},
        **{"continue": True},
    )
    send(one, "b", voice={"mode": "id", "id": "bob"}, generation_config=None, **{"continue": True})
    (opened,) = one.opened
    assert (opened.voice, opened.values, opened.gain) == ("anna", {"speed": 1.3, "instruct_text": "In a whisper."}, 0.5)
    assert (opened.format.codec, opened.format.sample_rate) == ("pcm_f32le", 44100)


def test_a_cancel_is_immediate_and_answered_by_nothing() -> None:
    """The package takes a ``done`` of a context that it has cancelled as the end of whichever one it reads."""
    one = speaking()
    assert one.receive('{"context_id": "c1", "cancel": true}') == []
    assert one.cancelled == ["1"] and one.closed is None
    assert one.receive('{"context_id": "c1", "cancel": true}') == one.receive('{"context_id": "nobody", "cancel": true}') == []


@pytest.mark.parametrize("ends", ["cancel", "failure"])
def test_the_rest_of_a_text_is_not_spoken_without_its_beginning(ends: str) -> None:
    """Pieces that were under way when a context ended must not open it anew."""
    one = speaking()
    if ends == "cancel":
        one.receive('{"context_id": "c1", "cancel": true}')
    else:
        one.failed("1", BusyError("Full; try again in 2.5 s.", retry_after_s=2.5))
    (error,) = send(one, "tail of it", **{"continue": True})
    assert (error["type"], error["context_id"], error["status_code"], error["done"]) == ("error", "c1", 400, True)
    assert one.texts == {} and one.closed is None
    send(one, "Another one.", "c2")
    assert one.texts == {"2": "Another one."}


def test_flushes_are_counted_from_one() -> None:
    one = speaking("First. ")
    send(one, "", flush=True, **{"continue": True})
    assert one.flushes == {"1": 1}
    assert one.flushed("1") == [
        {"type": "flush_done", "context_id": "c1", "done": False, "status_code": 206, "flush_id": 1, "flush_done": True}
    ]
    assert one.audio("1", Made(b"x", 1.0, 1))[0]["flush_id"] == 2


def test_words_come_with_their_times_where_they_are_asked_for() -> None:
    one = speaking(add_timestamps=True)
    assert times(one.audio("1", Made(b"xx", 500.0, 0, 5))) == [("Hello", 0.0, 0.5)]
    assert times(one.audio("1", Made(b"", 500.0, 5, 15))) == [("there", 0.55, 0.8)]
    assert times(one.finished("1")) == [("world.", 0.85, 1.0)]
    assert times(speaking().audio("1", Made(b"xx", 500.0, 0, 5))) == []


def test_words_are_told_at_a_flush_though_more_text_may_follow() -> None:
    """Else the last word before a pause would be missing from what an interrupted agent has said."""
    one = speaking("Hello there", add_timestamps=True)
    send(one, "", flush=True, **{"continue": True})
    assert times(one.audio("1", Made(b"xx", 1100.0, 11, 11))) == [("Hello", 0.0, 0.5)]
    assert times(one.flushed("1")) == [("there", 0.6, 1.1)]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BusyError("Full; try again in 2.5 s.", retry_after_s=2.5), 429, "busy"),
        (UnknownSpeakerError("There is none."), 404, "unknown_speaker"),
        (EngineError("Computing failed; try again."), 503, "engine_error"),
    ],
)
def test_a_failure_concerns_its_context_alone(error: Any, status: int, code: str) -> None:
    one = speaking()
    send(one, "b", "c2", **{"continue": True})
    (message,) = one.failed("1", error)
    assert (message["type"], message["context_id"], message["done"]) == ("error", "c1", True)
    assert (message["status_code"], message["error_code"], message["message"]) == (status, code, error.sentence) and message["title"]
    assert one.texts == {"2": "b"} and one.closed is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"voice": {"mode": "embedding", "embedding": [0.1]}},
        {"voice": None},
        {"output_format": {"container": "mp3", "sample_rate": 24000}},
        {"output_format": {"container": "raw", "encoding": "pcm_s24le", "sample_rate": 24000}},
        {"output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 1}},
        {"output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": "24000"}},
        {"generation_config": {"volume": 9}},
        {"generation_config": {"speed": "fast"}},
        {"transcript": 5},
    ],
)
def test_wrong_settings_are_an_error_of_the_context_and_the_socket_stays(wrong: dict[str, Any]) -> None:
    one = player()
    (error,) = send(one, **{"transcript": "x", **wrong})
    assert (error["type"], error["context_id"], error["status_code"]) == ("error", "c1", 400)
    assert one.opened == [] and one.closed is None
    send(one, "x", "c2")
    assert one.texts == {"1": "x"}


def test_a_message_without_a_context_ends_the_connection() -> None:
    for wrong in (None, "", 5, "x" * 200):
        one = speaking()
        send(one, "x", wrong)
        assert one.cancelled == ["1"] and one.closed is not None and one.closed.code == 1008 and "context_id" not in one.sent[-1]


def test_text_behind_the_end_of_its_context_is_an_error_and_a_second_end_is_none() -> None:
    one = player()
    send(one, "All of it.", **{"continue": False})
    assert send(one, "", **{"continue": False}) == send(one, " ", **{"continue": False}) == []
    assert send(one, "More.", **{"continue": True})[0]["type"] == "error" and one.cancelled == ["1"]


def test_contexts_and_what_is_remembered_of_them_are_bounded() -> None:
    one = player(max_contexts=2)
    for name in "abc":
        send(one, "x", name, **{"continue": True})
    assert "2 contexts" in one.sent[-1]["message"] and one.sent[-1]["context_id"] == "c" and len(one.texts) == 2
    for number in range(MAX_REMEMBERED + 1):
        send(one, "x", f"many-{number}")
    assert send(one, "x", "c")[0]["message"].startswith("2 contexts")  # forgotten, and tried anew

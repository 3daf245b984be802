"""ElevenLabs' protocols as their clients speak them; the traps of both agents' plugins."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import BusyError
from interfaces.audio.formats import OutputFormat
from interfaces.core.text import Break
from interfaces.protocols.actions import Made
from interfaces.protocols.alignment import Alignment
from interfaces.protocols.elevenlabs import ElevenLabs, ElevenLabsOptions, key_headers
from tests.unit.interfaces.machine import Player
from tests.unit.interfaces.rig import SAMPLES_PER_CHARACTER, Running
from tests.unit.interfaces.test_http import ask


def player(is_multi: bool = True, **options: Any) -> Player:
    return Player(ElevenLabs(ElevenLabsOptions("anna", OutputFormat(), is_multi, **options)))


def send(one: Player, **message: Any) -> list[Any]:
    return one.receive(json.dumps(message))


def test_contexts_beside_each_other_and_an_empty_text_keeps_alive() -> None:
    one = player()
    send(one, text="a", context_id="c1")
    send(one, text="b", context_id="c2")
    assert send(one, text="") == [] and send(one, text="", context_id="c1") == [] and send(one, text="", context_id="new") == []
    assert one.texts == {"1": "a", "2": "b"} and not one.ended


def test_close_without_a_flush_is_a_cancel() -> None:
    one = player()
    send(one, text="Hello", context_id="c1")
    assert send(one, context_id="c1", close_context=True) == [{"isFinal": True, "contextId": "c1"}]
    assert one.cancelled == ["1"]


def test_a_second_close_is_a_cancel_while_the_context_drains() -> None:
    one = player()
    send(one, text="Hello", context_id="c1", flush=True)
    send(one, context_id="c1", close_context=True)
    send(one, context_id="c1", close_context=True)
    assert one.cancelled == ["1"]
    assert send(one, context_id="c1", close_context=True) == []


def test_livekits_flush_has_an_empty_text() -> None:
    one = player()
    send(one, text="Hello", context_id="c1")
    send(one, text="", context_id="c1", flush=True)
    assert one.flushes == {"1": 1}
    one.flushed("1")
    send(one, context_id="c1", close_context=True)  # all was spoken: nothing is left to wait for
    assert one.cancelled == ["1"]


def test_a_failure_concerns_its_context_alone() -> None:
    one = player()
    send(one, text="a", context_id="c1")
    send(one, text="b", context_id="c2")
    error, final = one.failed("1", BusyError("Full; try again in 2.5 s.", retry_after_s=2.5))
    assert error["error"].startswith("Full") and error["contextId"] == final["contextId"] == "c1"
    assert one.texts == {"2": "b"} and one.closed is None


def test_the_rest_of_a_failed_text_is_not_spoken_without_its_beginning() -> None:
    """Pieces of the language model that were under way when its context failed."""
    one = player()
    send(one, text="a", context_id="c1")
    one.failed("1", BusyError("Full; try again in 2.5 s.", retry_after_s=2.5))
    assert send(one, text="tail of it", context_id="c1") == send(one, context_id="c1", flush=True) == [] and one.texts == {}
    assert send(one, context_id="c1", close_context=True) == []
    send(one, text="anew", context_id="c1")
    assert one.texts == {"2": "anew"}


def test_sentences_that_come_without_a_blank_between_get_one() -> None:
    """Pipecat sends them so in its sentence mode, and asks for ``auto_mode`` there."""
    sentences = ("Hello there.", "How are you? ", "Well!", "Good.", "今天。", "Yes")
    one = player(has_sentences=True)
    for text in sentences:
        send(one, text=text, context_id="c1")
    assert one.texts == {"1": "Hello there. How are you? Well! Good.今天。Yes"}
    exact = player()  # without it pieces are tokens
    for text in sentences:
        send(exact, text=text, context_id="c1")
    assert exact.texts == {"1": "".join(sentences)}


@pytest.mark.parametrize(
    ("message", "headers"),
    [
        ({"text": " ", "xi_api_key": "secret"}, {"xi-api-key": "secret"}),
        ({"text": " ", "xi-api-key": "secret"}, {"xi-api-key": "secret"}),
        ({"text": " ", "authorization": "Bearer secret"}, {"authorization": "Bearer secret"}),
        ({"text": " ", "authorization": "secret"}, {"authorization": "Bearer secret"}),
        ({"text": " "}, {}),
        ({"text": " ", "xi_api_key": 5}, {}),
        ({"text": " ", "xi_api_key": "\ud800"}, {}),
        ([], {}),
    ],
)
def test_the_key_of_a_first_message(message: Any, headers: dict[str, str]) -> None:
    assert key_headers(json.dumps(message)) == headers


def test_stream_input_ends_with_an_empty_text_and_a_close_of_1000() -> None:
    one = player(is_multi=False)
    send(one, text=" ", try_trigger_generation=True, voice_settings=None, generation_config={"chunk_length_schedule": [50]})
    send(one, text="Hello, ", try_trigger_generation=True)
    send(one, text="")
    assert one.texts == {"1": "Hello, "} and one.ended == {"1"}
    assert one.finished("1") == [{"isFinal": True}]
    assert one.closed is not None and one.closed.code == 1000


def test_stream_input_says_an_error_so_that_the_sdk_raises_it() -> None:
    one = player(is_multi=False)
    send(one, text="Hello")
    (error,) = one.failed("1", BusyError("Full."))
    assert error["message"] == "Full." and one.closed is not None and one.closed.code == 1008


def test_characters_are_told_up_to_where_the_voice_is() -> None:
    """The bound, for a server that tells no more."""
    one = player()
    send(one, text="Hello world. ", context_id="c")
    first, second = (one.audio("1", made)[0]["alignment"] for made in (Made(b"x", 400.0, 1, 4), Made(b"x", 300.0, 7)))
    assert first == {"chars": list("Hell"), "charStartTimesMs": [0, 100, 200, 300], "charDurationsMs": [100] * 4}
    assert second == {"chars": list("o w"), "charStartTimesMs": [0, 100, 200], "charDurationsMs": [100] * 3}


@given(st.lists(st.tuples(st.floats(0, 5000), st.integers(0, 12), st.booleans()), max_size=12), st.booleans())
def test_alignment_stays_with_the_audio_and_the_position(chunks: list[tuple[float, int, bool]], cumulative: bool) -> None:
    alignment, text = Alignment(cumulative), "x" * 60
    alignment.append(text)
    clock = audio = 0.0
    chars = consumed = 0
    for duration, more, has_bytes in chunks:
        consumed, audio = min(consumed + more, len(text)), audio + duration
        if not has_bytes:
            alignment.hold(duration)
            continue
        made = alignment.next(duration, consumed)
        if made is None:
            continue
        chars += len(made["chars"])
        assert chars == consumed and all(length >= 0 for length in made["charDurationsMs"])
        starts, lengths = made["charStartTimesMs"], made["charDurationsMs"]
        assert starts[0] == (round(clock) if cumulative else 0)
        assert all(start + length == following for start, length, following in zip(starts, lengths, starts[1:], strict=False))
        clock = starts[-1] + lengths[-1] if cumulative else clock + starts[-1] + lengths[-1]  # Pipecat's running clock
        assert abs(clock - audio) <= 1


@pytest.mark.parametrize("is_cumulative", [True, False])
def test_no_character_is_spoken_in_the_silence_of_a_break(is_cumulative: bool) -> None:
    alignment = Alignment(is_cumulative)
    alignment.append("One")
    alignment.pause(3000)
    alignment.append("Two")
    first, silent, last = alignment.next(600.0, 3), alignment.next(3000.0, 3), alignment.next(600.0, 6)
    assert first is not None and silent is None and last is not None
    begin = 3600 if is_cumulative else 3000
    assert last["charStartTimesMs"] == [begin, begin + 200, begin + 400] and last["charDurationsMs"] == [200] * 3


def test_contexts_are_bounded() -> None:
    one = player(max_contexts=2)
    for name in "abc":
        send(one, text="x", context_id=name)
    assert one.closed is not None and "2 contexts" in one.sent[-1]["error"]


BREAK = '<break time="1.5s" />'
WRITTEN = st.lists(st.sampled_from([BREAK, "<break time='300ms'/>", "<em>", "<", "a<b", "Hi ", "你", "</break>"]), max_size=10).map("".join)


@given(WRITTEN, st.data())
def test_breaks_are_silence_whatever_the_cuts(written: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    one = player(False)
    send(one, text="Go. ")
    for begin, end in pairwise([0, *places, len(written)]):
        if written[begin:end]:
            send(one, text=written[begin:end])
    send(one, text="")
    silences = [item.silence_ms for item in one.items if isinstance(item, Break)]
    text = "".join(item for item in one.items if isinstance(item, str))
    assert silences == [1500 if found.startswith("1.5s") else 300 for found in re.findall(r"<break time=.(1\.5s|300ms)", written)]
    assert text == "Go. " + re.sub(r"</?break[^<>]*>", "", written) and one.ended == {"1"}


def test_a_wrong_break_has_no_effect_and_closes_nothing() -> None:
    one = player()
    send(one, text=f'One. <break time="1h"/>Two. {BREAK}', context_id="c1")
    assert one.texts["1"].startswith("One. Two. ") and not any(isinstance(item, Break) for item in one.items) and one.closed is None


def test_breaks_of_a_request_over_http(front: Running) -> None:
    status, _, data = ask(front, "POST", "/v1/text-to-speech/anna?output_format=pcm_24000", {"text": f"One. {BREAK}Two."})
    assert status == 200 and len(data) == 2 * SAMPLES_PER_CHARACTER * len("One. Two.") + 2 * 36_000

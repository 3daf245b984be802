"""Voice conversion: the speech tokens of a recording take the place of the language model's."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bistream.errors import CancelledError, InvalidInputError
from bistream.sessions.ports import BistreamRequest
from bistream.types import GenerationOptions
from tests.formats import SAMPLES_PER_TOKEN
from tests.unit.sessions.fakes import REFERENCE, append_request, cancel_request, start_request
from tests.unit.sessions.house import House

SOURCE = (np.arange(4 * 16000, dtype=np.float32) % 120) / 200.0
TOKENS = 100  # of ``FakeVoicePort`` for 4 s


def conversion(**changes: Any) -> BistreamRequest:
    """A voice without a transcript, and a source."""
    return start_request(b"", reference_text=None, source_wav=SOURCE, **changes)


@pytest.mark.parametrize("length", [None, 4 * 16000 - 640 * 7])
def test_the_words_of_the_source_stream_in_the_voice(house: House, length: int | None) -> None:
    """The fake renderer checks that the tokens come in order."""
    sender = house.send(conversion(source_wav_len=length))
    assert sender.wait() is None
    tokens = TOKENS if length is None else TOKENS - 7
    np.testing.assert_array_equal(sender.waveform, np.arange(tokens * SAMPLES_PER_TOKEN, dtype=np.float32))
    assert len(sender.chunks) > 1, "it streams"
    assert all(chunk.text_consumed == 0 for chunk in sender.chunks)
    models = house.models
    assert models.language_model.starts == [] and models.held == 0 and house.orchestrator.open_sessions == 0
    prompt = models.token2wav.hops[0].prompt
    assert prompt is not None and prompt.speech_tokens.tolist() == list(range(25)), "the voice is that of the reference"


@pytest.mark.parametrize("speed", [None, 2.0])
def test_as_a_whole(house: House, speed: float | None) -> None:
    sender = house.send(conversion(session_id=None, is_offline=True, speed=speed))
    assert sender.wait() is None
    assert len(sender.waveform) == TOKENS * SAMPLES_PER_TOKEN // int(speed or 1)
    assert house.models.token2wav.hops == []


def test_a_voice_that_was_heard_is_analysed_once_and_the_source_always(house: House) -> None:
    for _ in range(2):
        assert house.send(conversion()).wait() is None
    assert house.models.voice.calls == 1 + 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_text": b"x"}, "leave target_text"),
        ({"options": GenerationOptions(instruct_text="x")}, "instruct_text out"),
        ({"is_end": False}, "is_end true"),
        ({"source_wav": np.zeros(100, np.float32)}, "The recording in source_wav lasts 0.006 s"),
        ({"source_wav": np.zeros(16000 * 31, np.float32)}, "at most 30 s"),
        ({"source_wav": np.full(16000, np.nan, np.float32)}, "source_wav contains NaN"),
        ({"source_wav_len": 10**6}, "source_wav_len is 1000000, but source_wav holds"),
        ({"reference_wav": None}, "voice is missing"),
    ],
)
def test_what_does_not_fit_is_refused(house: House, changes: dict[str, Any], words: str) -> None:
    error = house.refused(replace(conversion(), **changes))
    assert isinstance(error, InvalidInputError) and words in error.sentence
    assert house.orchestrator.open_sessions == 0


def test_nothing_can_be_added(house: House) -> None:
    house.models.voice.gate = threading.Event()
    sender = house.send(conversion())
    for late in (append_request("more"), replace(append_request(), source_wav=REFERENCE)):
        assert isinstance(house.refused(late), InvalidInputError)
    house.models.voice.gate.set()
    assert sender.wait() is None


@pytest.mark.parametrize("calls", [1, 2])
def test_a_cancel_while_a_recording_is_analysed(house: House, calls: int) -> None:
    """The voice's, or the source's."""
    voice = house.models.voice
    if calls == 2:
        assert house.send(start_request(reference_text=None)).wait() is None
    voice.gate = threading.Event()
    sender = house.send(conversion())
    voice.wait_calls(calls)
    assert house.send(cancel_request()).endings == [None]
    assert isinstance(sender.wait(), CancelledError)
    house.wait_until(lambda: house.orchestrator.open_sessions == 0, "its place is free before the analysis ends")
    voice.gate.set()

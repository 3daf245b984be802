"""Requests that are refused at once: nothing is started, nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bistream.checkpoints.model_card import MODEL_CARD_FILE
from bistream.errors import CancelledError, InvalidInputError, SessionExistsError, UnknownSessionError, UnknownSpeakerError
from bistream.sessions.ports import BistreamRequest
from bistream.types import GenerationOptions
from tests.unit.sessions.fakes import REFERENCE, append_request, cancel_request, start_request
from tests.unit.sessions.house import CONFIG, House, assert_whole


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"target_text": None}, "empty"),
        ({"session_id": "no blanks"}, "session_id"),
        ({"session_id": None, "is_end": False}, "session_id"),
        ({"reference_wav": None}, "speaker_id"),
        ({"reference_text": ""}, "leave reference_text out"),
        ({"instruct_text": "x" * 101}, "instruct_text is longer than 100"),
        ({"reference_text": " "}, "transcript"),
        ({"reference_wav": np.zeros(7999, np.float32)}, "0.5 s"),
        ({"reference_wav": np.zeros(16000 * 31, np.float32)}, "30 s"),
        ({"reference_wav": np.full(16000, np.nan, np.float32)}, "NaN"),
        ({"reference_wav_len": 16001}, "reference_wav_len"),
        ({"reference_wav_len": 0}, "reference_wav_len"),
        ({"speaker_id": "anna"}, "both"),
        ({"reference_hash": "0" * 64, "reference_wav": None, "reference_text": None, "speaker_id": "anna"}, "both"),
        ({"reference_hash": "0" * 64, "reference_wav": None}, "reference_text"),
        ({"reference_hash": "A" * 64, "reference_wav": None, "reference_text": None}, "64"),
        ({"speaker_id": "../anna", "reference_wav": None}, "speaker_id"),
        ({"options": GenerationOptions(temperature=-1.0)}, "temperature"),
        ({"speed": 0.4}, "speed"),
        ({"speed": float("nan"), "is_end": False}, "speed"),
        ({"is_offline": True, "is_end": False}, "is_offline"),
    ],
)
def test_a_bad_start_is_refused_at_once(house: House, changes: dict[str, Any], word: str) -> None:
    error = house.refused(start_request(**changes))
    assert isinstance(error, InvalidInputError)
    assert word in error.sentence
    assert house.orchestrator.open_sessions == 0
    assert house.models.voice.calls == 0


def test_an_unknown_speaker_is_an_error(house: House) -> None:
    sender = house.send(start_request(reference_wav=None, reference_text=None, speaker_id="nobody"))
    assert isinstance(sender.wait(), UnknownSpeakerError)
    house.wait_empty()


def test_append_and_cancel_need_a_live_session(house: House) -> None:
    for request in (append_request("x"), cancel_request()):
        error = house.refused(request)
        assert isinstance(error, UnknownSessionError)
        assert error.session_id == "s"
    assert house.send(start_request()).wait() is None
    assert isinstance(house.refused(append_request("x")), UnknownSessionError), "it has finished"
    sender = house.send(start_request(is_end=False))
    assert house.send(cancel_request()).endings == [None]
    assert isinstance(sender.wait(), CancelledError)
    for late in (append_request("x"), append_request("", is_end=True), cancel_request()):
        error = house.refused(late)
        assert isinstance(error, CancelledError), "it was cancelled"
        assert error.session_id == "s"
    assert isinstance(house.refused(append_request("x", session_id=None)), InvalidInputError)


def test_a_session_with_a_secret_is_unknown_to_strangers(house: House) -> None:
    """Whoever guesses the id can neither append nor cancel, nor learn that the session exists."""
    sender = house.send(start_request("Hello ", is_end=False, session_secret="mine"))
    for secret in (None, "yours"):
        for stranger in (append_request("x"), append_request("", is_end=True), cancel_request()):
            assert isinstance(house.refused(replace(stranger, session_secret=secret)), UnknownSessionError)
    assert_whole(house.send(start_request("Hi all.")), "Hi all.")
    assert house.send(replace(append_request("world.", is_end=True), session_secret="mine")).endings == [None]
    assert_whole(sender, "Hello world.")
    late = [house.refused(replace(append_request("x"), session_secret=secret)) for secret in ("mine", "yours")]
    assert ["finished" in error.sentence for error in late] == [True, False]


def test_a_refused_piece_leaves_the_session_unchanged(house: House) -> None:
    text = "Hello world."
    sender = house.send(start_request(text[:6], is_end=False))
    for bad in (append_request("x" * 100), append_request(b"\xff"), append_request(b"abc\xc3", is_end=True)):
        assert isinstance(house.refused(bad), InvalidInputError)
    voice_again = BistreamRequest(target_text=b"x", session_id="s", is_start=False, reference_wav=REFERENCE)
    assert isinstance(house.refused(voice_again), InvalidInputError)
    hash_again = BistreamRequest(target_text=b"x", session_id="s", is_start=False, reference_hash="0" * 64)
    assert isinstance(house.refused(hash_again), InvalidInputError)
    assert house.send(append_request(text[6:], is_end=True)).endings == [None]
    assert_whole(sender, text)


def test_text_after_its_end_is_refused(house: House) -> None:
    gate, _ = house.models.token2wav.hold()
    sender = house.send(start_request("Hello world."))
    assert isinstance(house.refused(append_request("more")), InvalidInputError)
    gate.set()
    assert_whole(sender, "Hello world.")


def test_a_live_session_id_cannot_be_started_again(house: House) -> None:
    first = house.send(start_request("Hello", is_end=False))
    assert isinstance(house.refused(start_request()), SessionExistsError)
    house.send(append_request(" world.", is_end=True))
    assert_whole(first, "Hello world.")
    assert_whole(house.send(start_request("Hello again.")), "Hello again.")


def test_an_id_is_free_again_after_its_client_is_gone(house: House) -> None:
    first = house.send(start_request("Hello", is_end=False))
    first.gone = True
    assert_whole(house.send(start_request("Hello again.")), "Hello again.")
    assert isinstance(first.wait(), CancelledError)


@pytest.fixture
def english(tmp_path: Path) -> Iterator[House]:
    """Before a checkpoint like the shipped voice."""
    (tmp_path / MODEL_CARD_FILE).write_text(json.dumps({"languages": ["en"], "can_be_instructed": False}))
    house = House(replace(CONFIG, model_dir=str(tmp_path)))
    yield house
    house.orchestrator.close()


def test_a_checkpoint_that_takes_no_instructions_says_so(english: House) -> None:
    error = english.refused(start_request(instruct_text="Speak cheerfully."))
    assert isinstance(error, InvalidInputError) and "leave instruct_text out" in error.sentence


@pytest.mark.parametrize("nothing", ["", " NULL\n"])
def test_an_instruction_that_says_nothing_is_none(english: House, nothing: str) -> None:
    sender = english.send(start_request(instruct_text=nothing, is_end=False))
    assert english.send(replace(append_request(b"Again.", is_end=True), options=GenerationOptions(instruct_text=nothing))).wait() is None
    assert sender.wait() is None
    (start,) = english.models.language_model.starts
    assert start.options.instruct_text == ""


def test_text_in_another_script_is_refused_at_the_piece_that_brings_it(english: House) -> None:
    chinese = "今天天气不错，我们去公园散步吧。"
    assert "another script" in english.refused(start_request(chinese)).sentence
    sender = english.send(start_request("", is_end=False))
    error = english.send(append_request(chinese)).wait()
    assert isinstance(error, InvalidInputError) and "another script" in error.sentence
    assert english.send(append_request("Hello 世界.", is_end=True)).wait() is None  # the refused piece has changed nothing
    assert sender.wait() is None

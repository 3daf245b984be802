"""A voice that was heard before is asked for by its hash."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bistream.contract.voices import reference_hash
from bistream.errors import InvalidInputError, UnknownVoiceError
from bistream.sessions.ports import BistreamRequest
from tests.unit.sessions.fakes import REFERENCE, append_request, cancel_request, start_request
from tests.unit.sessions.house import CONFIG, House, assert_whole, house_with

TRANSCRIPT = "Reference."
HASH = reference_hash(REFERENCE, TRANSCRIPT)


def by_hash(text: str = "Hello world.", **changes: object) -> BistreamRequest:
    return replace(start_request(text, reference_wav=None, reference_text=None, reference_hash=HASH), **changes)  # type: ignore[arg-type]


def test_a_hash_speaks_with_the_voice_of_the_recording_and_analyses_nothing(house: House) -> None:
    assert_whole(house.send(start_request("First.")), "First.")
    first = house.models.language_model.starts[0]
    assert_whole(house.send(by_hash()), "Hello world.")
    second = house.models.language_model.starts[1]
    assert house.models.voice.calls == 1
    assert second.prompt_text == first.prompt_text == TRANSCRIPT
    np.testing.assert_array_equal(second.prompt_speech_tokens, first.prompt_speech_tokens)
    prompts = [hop.prompt for hop in house.models.token2wav.hops if hop.prompt is not None]
    assert prompts[0] is prompts[1]


def test_an_unknown_hash_is_refused_before_a_session_exists(house: House) -> None:
    error = house.refused(by_hash())
    assert isinstance(error, UnknownVoiceError) and error.session_id == "s"
    assert "send reference_wav" in error.sentence and HASH not in error.sentence
    assert house.orchestrator.open_sessions == 0 and house.models.voice.calls == 0


def test_pieces_that_follow_an_unknown_hash_are_told_the_same_until_the_session_starts(house: House) -> None:
    house.refused(by_hash("Hello ", is_end=False))
    for late in (append_request("x"), cancel_request()):
        assert isinstance(house.refused(late), UnknownVoiceError)
    sender = house.send(start_request("Hello ", is_end=False))
    assert house.send(append_request("world.", is_end=True)).endings == [None]
    assert_whole(sender, "Hello world.")


def test_an_unknown_hash_takes_no_place_of_a_full_server(house: House) -> None:
    for index in range(CONFIG.max_sessions - 1):
        house.send(start_request("Hello", session_id=f"s{index}", is_end=False))
    unheard = reference_hash(REFERENCE, "Unheard.")
    house.refused(by_hash(reference_hash=unheard))
    assert house.send(start_request(reference_text="Unheard.")).wait() is None


def test_a_hash_beside_the_recording_must_be_its_own(house: House) -> None:
    assert house.send(start_request(reference_hash=HASH)).wait() is None
    wrong = reference_hash(REFERENCE, "Something else.")
    sender = house.send(start_request(reference_hash=wrong))
    error = sender.wait()
    assert isinstance(error, InvalidInputError) and "reference_hash" in error.sentence
    house.wait_empty()
    assert isinstance(house.refused(by_hash(reference_hash=wrong)), UnknownVoiceError), "nothing was kept under the wrong name"


@house_with(voice_cache_size=1)
def test_a_forgotten_voice_is_wanted_again(house: House) -> None:
    assert house.send(start_request()).wait() is None
    assert house.send(by_hash()).wait() is None
    assert house.send(start_request(reference_text="Another.")).wait() is None
    assert isinstance(house.refused(by_hash()), UnknownVoiceError)
    assert house.send(start_request()).wait() is None
    assert house.models.voice.calls == 3

"""Voices made of labels: which starts may ask for one, that it is made once, and who is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bistream.checkpoints.model_card import ModelCard
from bistream.config import RuntimeConfig
from bistream.errors import EngineError, InvalidInputError
from bistream.families.family import Family
from bistream.families.registry import FAMILIES
from bistream.sessions.request_checks import SessionStart, check_start
from bistream.sessions.voices import Voices
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens
from bistream.types import GenerationOptions
from tests.unit.sessions.fakes import REFERENCE, WAIT_S, FakeVoicePort, append_request, request_of, start_request
from tests.unit.sessions.house import CONFIG, House

TAKES_LABELS = ModelCard(takes_labels=True)
NO_VOICE: dict[str, Any] = {"reference_wav": None, "reference_text": None}


def start(card: ModelCard = TAKES_LABELS, config: RuntimeConfig = CONFIG, **values: Any) -> SessionStart:
    return check_start(request_of(**{"target_text": b"Hello.", "gender": "female", **values}), config, card)


def test_what_is_not_said_is_moderate_and_no_default_speaker_speaks() -> None:
    assert start(config=RuntimeConfig(default_speaker_id="anna")).labels == Labels("female", "moderate", "moderate")
    whole = start(pitch="very_high", speaking_rate="low")
    assert whole.labels == Labels("female", "very_high", "low") and whole.speaker_id is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"gender": "neutral"}, "gender must be one of female, male"),
        ({"gender": ""}, "gender must be one of female, male"),
        ({"pitch": "medium"}, "pitch must be one of very_low, low, moderate, high, very_high"),
        ({"speaking_rate": "1.5"}, "speaking_rate must be one of very_low"),
        ({"gender": None, "pitch": "high"}, "pitch describes a voice to be made, which needs a gender"),
        ({"gender": None, "speaking_rate": "low"}, "speaking_rate describes a voice to be made"),
        ({"reference_wav": REFERENCE}, "both reference_wav and gender"),
        ({"reference_hash": "0" * 64}, "both reference_hash and gender"),
        ({"speaker_id": "anna", "gender": None, "pitch": "low"}, "both speaker_id and pitch"),
    ],
)
def test_labels_that_cannot_be_are_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        start(**values)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_only_a_family_that_makes_voices_takes_labels(family: Family, tmp_path: Path) -> None:
    """Through the orchestrator, which reads the card of the model directory."""
    yaml = tmp_path / family.yaml_names[0]
    yaml.parent.mkdir(exist_ok=True)
    yaml.write_text("")
    house = House(replace(CONFIG, model_dir=str(tmp_path)))
    for words in ({"gender": "male"}, {"gender": "male", "pitch": "high"}, {"gender": "male", "speaking_rate": "low"}):
        error = house.send(start_request(**NO_VOICE, **words)).wait()
        assert (error is None) == family.takes_labels
        if error is not None:
            assert error.sentence == "This checkpoint makes no voices of labels; leave out gender, pitch and speaking_rate."
            assert isinstance(error, InvalidInputError) and house.models.voice.calls == 0
    house.orchestrator.close()


def test_a_voice_is_made_once_for_the_same_labels_and_seed() -> None:
    port = FakeVoicePort()
    voices = Voices(CONFIG, port)

    def made(seed: int, **labels: Any) -> list[int]:
        asked = start(options=GenerationOptions(seed=seed), **labels)
        return list(voices.request(asked).future.result(WAIT_S).speaker_tokens)

    first = made(7)
    assert first == list(SpeakerTokens((7,) * 32, Labels("female"), 200, 4).numbers)
    assert made(7) == made(7, pitch="moderate") == first and port.calls == 1
    others = [made(8), made(7, pitch="low"), made(7, speaking_rate="low"), made(7, gender="male")]
    assert len({tuple(one) for one in [first, *others]}) == 5 and port.calls == 5
    voices.close(WAIT_S)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """With a family that takes labels."""
    (tmp_path / "BiCodec").mkdir()
    (tmp_path / "BiCodec/config.yaml").write_text("")
    house = House(replace(CONFIG, model_dir=str(tmp_path)))
    yield house
    house.orchestrator.close()


def test_the_language_model_is_told_the_labels_and_the_codec_the_global_tokens(house: House) -> None:
    sender = house.send(start_request("", is_end=False, gender="male", pitch="low", options=GenerationOptions(seed=9), **NO_VOICE))
    assert house.send(append_request("Hello world.", is_end=True)).wait() is None
    assert sender.wait() is None
    (told,) = house.models.language_model.starts
    assert SpeakerTokens.of(told.speaker_tokens.tolist()) == SpeakerTokens((9,) * 32, Labels("male", "low"), 200, 4)
    assert told.prompt_text == "" and not told.prompt_speech_tokens.size
    prompts = [hop.prompt for hop in house.models.token2wav.hops if hop.prompt is not None]
    assert len(prompts) == 1 and np.array_equal(prompts[0].speaker_embedding, np.full(32, 9, np.float32))


def test_a_voice_that_cannot_be_made_ends_its_session(house: House) -> None:
    house.models.voice.fails = EngineError("The language model failed; start the session again.")
    error = house.send(start_request(gender="male", **NO_VOICE)).wait()
    assert isinstance(error, EngineError) and error.session_id == "s"
    house.wait_empty()
    assert not house.models.language_model.starts

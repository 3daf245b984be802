"""Voices by name: a registered one precedes a preset, and the presets are read only when they are asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from bistream.config import RuntimeConfig
from bistream.contract.voices import PRESET, REGISTERED, ListedVoice, format_voices, parse_voices
from bistream.errors import CheckpointError, UnknownSpeakerError
from bistream.sessions.named_voices import NamedVoices, open_voices
from bistream.sessions.voices import Voices
from bistream.text.tokenizer import TextTokenizer
from bistream.voice.registry import VoiceRegistry
from tests.unit.sessions.fakes import FakeVoicePort
from tests.unit.voice.voices import assert_same_voice, random_voice

SAID = "What <strong>she</strong> said, \u4f60\u597d [laughter]."


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a preset of every form that upstream writes."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(tiny_model_dir, directory)
    voice = random_voice(text=SAID)
    tokens, features, embedding = (
        torch.from_numpy(array.copy())[None] for array in (voice.speech_tokens, voice.speech_feat, voice.speaker_embedding)
    )
    text = torch.tensor([TextTokenizer.from_model_dir(directory).encode(SAID)], dtype=torch.int32)
    saved = {"prompt_text": text, "prompt_speech_feat": features, "flow_prompt_speech_token": tokens, "flow_embedding": embedding}
    triton = {"prompt_text": SAID, "speech_token": tokens, "speech_feat": features, "embedding": embedding}
    presets = {"\u4e2d\u6587\u5973": {"embedding": embedding}, "saved": saved, "001": triton, "anna": {"embedding": embedding}}
    torch.save(presets, directory / "spk2info.pt")
    return directory


def test_all_forms_are_voices(model_dir: Path, tmp_path: Path) -> None:
    voices, voice = NamedVoices(VoiceRegistry(""), model_dir), random_voice(text=SAID)
    assert voices.preset_ids() == ["\u4e2d\u6587\u5973", "saved", "001", "anna"] and "saved" in voices
    for name in ("saved", "001"):
        assert_same_voice(voices.load(name), voice)
    fixed = voices.load("\u4e2d\u6587\u5973")
    assert (fixed.prompt_text, fixed.speech_tokens.shape, fixed.speech_feat.shape) == ("", (0,), (0, 80))
    assert (fixed.speaker_embedding == voice.speaker_embedding).all()
    assert len({voices.content_key(name) for name in voices.preset_ids()}) == 4


def test_a_registered_voice_precedes_a_preset(model_dir: Path, tmp_path: Path) -> None:
    registry = VoiceRegistry(tmp_path)
    voices = NamedVoices(registry, model_dir)
    before = voices.content_key("anna")
    registry.save("anna", random_voice(text="Anna spoke."))
    assert voices.load("anna").prompt_text == "Anna spoke."
    assert voices.content_key("anna") != before


def test_all_names_are_listed_the_default_first(model_dir: Path, tmp_path: Path) -> None:
    registry = VoiceRegistry(tmp_path)
    voices = NamedVoices(registry, model_dir)
    presets = [ListedVoice(name, PRESET) for name in ("\u4e2d\u6587\u5973", "saved", "001", "anna")]
    assert voices.listed("") == presets == voices.listed("nobody")
    assert voices.listed("001")[0] == ListedVoice("001", PRESET, is_default=True)
    registry.save("ben", random_voice())
    registry.save("anna", random_voice())
    assert voices.listed("ben") == [ListedVoice("ben", REGISTERED, True), *presets[:3], ListedVoice("anna", REGISTERED)]
    assert parse_voices(format_voices(voices.listed("ben"))) == tuple(voices.listed("ben"))


def test_an_unknown_name_is_told_those_of_the_model(model_dir: Path) -> None:
    voices = NamedVoices(VoiceRegistry(""), model_dir)
    for ask in (voices.load, voices.content_key):
        with pytest.raises(UnknownSpeakerError, match="'nobody'.*\u4e2d\u6587\u5973, saved, 001, anna"):
            ask("nobody")
    with pytest.raises(UnknownSpeakerError, match="another speaker_id.$"):
        open_voices(RuntimeConfig()).load("nobody")


def test_a_damaged_file_is_named(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "spk2info.pt").write_bytes(b"no archive")
    voices = NamedVoices(VoiceRegistry(tmp_path / "voices"), tmp_path)
    with pytest.raises(CheckpointError, match="spk2info.pt"):
        voices.load("anna")


def test_a_setting_that_names_no_voice_is_logged_because_one_may_be_registered_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def logged(**settings: Any) -> str:
        caplog.clear()
        Voices(RuntimeConfig(**settings), FakeVoicePort())
        return caplog.text

    caplog.set_level("INFO")
    directory = str(tmp_path / "voices")
    assert "voices_dir" in logged(voices_dir=directory)
    assert "default_speaker_id 'anna'" in logged(default_speaker_id="anna")
    VoiceRegistry(directory).save("anna", random_voice())
    assert logged() == logged(voices_dir=directory, default_speaker_id="anna") == ""
    assert "default_speaker_id 'bert'" in logged(voices_dir=directory, default_speaker_id="bert")

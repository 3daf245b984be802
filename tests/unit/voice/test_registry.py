"""Voices on disk: what is saved is loaded, an id is never a path, damage is detected, a replacement is atomic."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import CheckpointError, InvalidInputError, UnknownSpeakerError
from bistream.store.fingerprint import Fingerprint
from bistream.voice.registry import VoiceRegistry
from tests.unit.voice.voices import assert_same_voice, random_voice


@settings(max_examples=10)
@given(
    speaker_id=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    tokens=st.integers(0, 5),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, speaker_id: str, text: str, tokens: int) -> None:
    registry = VoiceRegistry(tmp_path_factory.mktemp("voices") / "new")
    voice = random_voice(tokens=tokens, text=text)
    registry.save(speaker_id, voice)
    assert registry.speaker_ids() == [speaker_id]
    assert_same_voice(registry.load(speaker_id), voice)


@pytest.mark.parametrize("speaker_id", ["", "..", "../anna", "a/b", "a.b", "a" * 65, "änna", "anna\n", "a b"])
def test_illegal_ids(tmp_path: Path, speaker_id: str) -> None:
    registry = VoiceRegistry(tmp_path / "voices")
    with pytest.raises(InvalidInputError, match="speaker_id"):
        registry.save(speaker_id, random_voice())
    for ask in (registry.load, registry.content_key):
        with pytest.raises(UnknownSpeakerError):
            ask(speaker_id)
    assert list(tmp_path.iterdir()) == []


def test_replacing_changes_the_key_and_leaves_one_voice(tmp_path: Path) -> None:
    registry = VoiceRegistry(tmp_path)
    registry.save("anna", random_voice(1))
    key = registry.content_key("anna")
    registry.save("anna", random_voice(1))
    assert registry.content_key("anna") == key
    registry.save("anna", random_voice(2))
    assert registry.content_key("anna") != key
    registry.save("anna", random_voice(2, text="Other words."))
    assert_same_voice(registry.load("anna"), random_voice(2, text="Other words."))
    assert len(list(tmp_path.iterdir())) == 2


def _voice_files(directory: Path) -> tuple[Path, Path]:
    return directory / "anna.json", next(directory.glob("anna-*.safetensors"))


@pytest.mark.parametrize(
    "damage", ["tensors_gone", "tensors_cut", "tensors_bit", "json_cut", "json_list", "json_format", "json_path", "text"]
)
def test_damage_is_detected_and_repaired_by_registering_again(tmp_path: Path, damage: str) -> None:
    registry = VoiceRegistry(tmp_path)
    registry.save("anna", random_voice())
    header_path, tensors_path = _voice_files(tmp_path)
    header, tensors = json.loads(header_path.read_text(encoding="utf-8")), tensors_path.read_bytes()
    if damage == "tensors_gone":
        tensors_path.unlink()
    elif damage == "tensors_cut":
        tensors_path.write_bytes(tensors[:-5])
    elif damage == "tensors_bit":
        tensors_path.write_bytes(tensors[:-5] + bytes([tensors[-5] ^ 1]) + tensors[-4:])
    elif damage == "json_cut":
        header_path.write_text("{", encoding="utf-8")
    else:
        changed = {
            "json_list": [1],
            "json_format": header | {"format": 2},
            "json_path": header | {"tensors": f"../{tmp_path.name}/{tensors_path.name}"},
            "text": header | {"prompt_text": "Something else."},
        }[damage]
        header_path.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(CheckpointError, match="'anna' are damaged"):
        registry.load("anna")
    registry.save("anna", random_voice(3))
    assert_same_voice(registry.load("anna"), random_voice(3))


def test_readers_never_see_a_mixture(tmp_path: Path) -> None:
    registry = VoiceRegistry(tmp_path)
    voices = {text: random_voice(seed, text=text) for seed, text in enumerate(("One.", "Two."))}
    registry.save("anna", voices["One."])
    done = threading.Event()

    def write() -> None:
        for index in range(40):
            registry.save("anna", voices["One." if index % 2 else "Two."])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not done.is_set():
            voice = registry.load("anna")
            assert_same_voice(voice, voices[voice.prompt_text])
    finally:
        writer.join()


def test_a_voice_of_another_model_is_refused_and_can_be_replaced(tmp_path: Path) -> None:
    ours, theirs = Fingerprint({"campplus.onnx": "aa", "tokens": "1"}), Fingerprint({"campplus.onnx": "bb", "tokens": "1"})
    VoiceRegistry(tmp_path, theirs).save("anna", random_voice())
    registry = VoiceRegistry(tmp_path, ours)
    for ask in (registry.load, registry.content_key):
        with pytest.raises(CheckpointError, match=r"^The registered voice 'anna' .*\(campplus\.onnx bb, here aa\); register it again with"):
            ask("anna")
    assert_same_voice(VoiceRegistry(tmp_path, theirs).load("anna"), random_voice())
    assert_same_voice(VoiceRegistry(tmp_path).load("anna"), random_voice())
    registry.save("anna", random_voice(1))
    assert_same_voice(registry.load("anna"), random_voice(1))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_fingerprint_that_is_none_is_damage(tmp_path: Path) -> None:
    registry = VoiceRegistry(tmp_path, Fingerprint({"a": "1"}))
    registry.save("anna", random_voice())
    header_path, _ = _voice_files(tmp_path)
    header = json.loads(header_path.read_text(encoding="utf-8"))
    header_path.write_text(json.dumps(header | {"made_with": {"a": 1}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="damaged"):
        registry.load("anna")


def test_a_voice_without_fingerprint_is_spoken(tmp_path: Path) -> None:
    VoiceRegistry(tmp_path).save("anna", random_voice())
    assert_same_voice(VoiceRegistry(tmp_path, Fingerprint({"a": "1"})).load("anna"), random_voice())

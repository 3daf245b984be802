"""The script that registers voices, run as its users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from bistream.errors import InvalidInputError
from bistream.text.tokenizer import TextTokenizer
from bistream.voice.registry import VoiceRegistry
from scripts.register_voice import main, read_reference, text_decoder

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "assets" / "reference.wav"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["register_voice.py", *map(str, arguments)])
    return main()


def test_recording(tiny_model_dir: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "scripts/register_voice.py", "--model-dir", tiny_model_dir, "--voices-dir", tmp_path]
    command += ["--speaker-id", "anna"]
    finished = subprocess.run(
        [*command, "--wav", REFERENCE, "--text", " The morning train. "], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    voice = VoiceRegistry(tmp_path).load("anna")
    assert voice.prompt_text == "The morning train."
    assert abs(voice.speech_tokens.shape[0] / 25 - soundfile.info(REFERENCE).duration) < 0.05
    assert np.unique(voice.speech_tokens).size > 20
    assert f"{voice.speech_tokens.shape[0] / 25:.2f} s" in finished.stdout


def test_import(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--model-dir", tiny_model_dir, "--voices-dir", tmp_path, "--import-spk2info", tiny_model_dir / "spk2info.pt")
    assert run(monkeypatch, *common) == 0
    assert run(monkeypatch, *common, "--rename", "001=narrator") == 0
    registry = VoiceRegistry(tmp_path)
    assert registry.speaker_ids() == ["001", "narrator"]
    assert registry.load("001").speech_tokens.shape == (50,)
    assert run(monkeypatch, *common, "--rename", "002=x") == 1
    assert "no speaker '002'" in capsys.readouterr().err


def test_import_of_a_voice_of_another_model(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"anna": {"embedding": torch.zeros(1, 191)}}, tmp_path / "spk2info.pt")
    arguments = ("--model-dir", tiny_model_dir, "--voices-dir", tmp_path / "voices", "--import-spk2info", tmp_path / "spk2info.pt")
    assert run(monkeypatch, *arguments) == 1
    assert "'anna' belongs to another model" in capsys.readouterr().err
    assert not (tmp_path / "voices").exists()


def test_import_of_an_illegal_name(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"a b": {"embedding": torch.zeros(1, 192)}}, tmp_path / "spk2info.pt")
    common = ("--model-dir", tiny_model_dir, "--voices-dir", tmp_path / "voices", "--import-spk2info", tmp_path / "spk2info.pt")
    assert run(monkeypatch, *common) == 1
    assert "--rename a b=ID" in capsys.readouterr().err
    assert run(monkeypatch, *common, "--rename", "a b=a_b") == 0
    assert VoiceRegistry(tmp_path / "voices").speaker_ids() == ["a_b"]


@pytest.mark.parametrize("text", ["Hello, world: 12 trains.", "你好，世界", "a\n b\U0001f600<|endofprompt|>[breath]"])
def test_text_ids_are_decoded(tiny_model_dir: Path, text: str) -> None:
    assert text_decoder(tiny_model_dir)(TextTokenizer.from_model_dir(tiny_model_dir).encode(text)) == text


def test_any_rate_and_channels_become_16_khz_mono(tmp_path: Path) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100)
    soundfile.write(tmp_path / "stereo.flac", np.stack([tone, 0 * tone], axis=1), 44_100)
    waveform = read_reference(tmp_path / "stereo.flac")
    assert waveform.dtype == np.float32
    assert waveform.shape == (16_000,)
    assert abs(np.abs(waveform).max() - 0.5) < 0.01


def test_recordings_that_are_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "slow.wav", np.zeros(8000), 8000)
    with pytest.raises(InvalidInputError, match="8000 samples per second"):
        read_reference(tmp_path / "slow.wav")
    (tmp_path / "text.wav").write_text("no sound", encoding="utf-8")
    for name in ("text.wav", "absent.wav"):
        with pytest.raises(InvalidInputError, match=name):
            read_reference(tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--speaker-id", "../x", "--wav", REFERENCE, "--text", "a"), "speaker_id"),
        (("--speaker-id", "a", "--wav", REFERENCE, "--text", "  "), "transcript"),
        (("--speaker-id", "a", "--wav", "absent.wav", "--text", "a"), "absent.wav"),
        (("--import-spk2info", "absent.pt"), "absent.pt"),
    ],
)
def test_mistakes_end_with_a_sentence(
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str | Path, ...],
    words: str,
) -> None:
    assert run(monkeypatch, "--model-dir", tiny_model_dir, "--voices-dir", tmp_path / "voices", *arguments) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "voices").exists()


@pytest.mark.parametrize(
    "arguments",
    [(), ("--speaker-id", "a"), ("--import-spk2info", "f", "--text", "a"), ("--rename", "a=b", "--speaker-id", "a"), ("--rename", "a")],
)
def test_arguments_that_do_not_go_together(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--model-dir", "m", "--voices-dir", "v", *arguments)
    assert stopped.value.code == 2

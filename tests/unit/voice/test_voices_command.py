"""``bistream voices``, run as its users run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from bistream.commands.recording_advice import advice
from bistream.commands.voices import main
from bistream.contract.voices import PRESET, REGISTERED, ListedVoice
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens
from bistream.types import FloatArray
from bistream.voice.registry import VoiceRegistry
from tests.sounds import speech_like
from tests.unit.interfaces.rig import reading

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "assets" / "reference.wav"


def run(*arguments: str | Path) -> int:
    return main(["add", *map(str, arguments)])


def test_recording(tiny_model_dir: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "bistream", "voices", "add", "anna"]
    command += ["--model-dir", tiny_model_dir, "--voices-dir", tmp_path]
    command += ["--reference-audio", REFERENCE, "--reference-text", " The morning train. "]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    voice = VoiceRegistry(tmp_path).load("anna")
    assert voice.prompt_text == "The morning train."
    assert abs(voice.speech_tokens.shape[0] / 25 - soundfile.info(REFERENCE).duration) < 0.05
    assert "it has 1.8 s of speech" in finished.stderr
    assert np.unique(voice.speech_tokens).size > 20
    assert f"{voice.speech_tokens.shape[0] / 25:.2f} s" in finished.stdout


def test_the_voices_of_a_server_are_listed_the_default_first(capsys: pytest.CaptureFixture[str]) -> None:
    with reading() as server:
        server.voices = (ListedVoice("felix", PRESET, True), ListedVoice("anna", REGISTERED))
        assert main(["list", "--server", server.address]) == 0
        assert capsys.readouterr().out == "felix: preset, the default\nanna: registered\n"
        server.voices = ()
        assert main(["list", "--server", server.address]) == 0
        assert "no voice by name" in capsys.readouterr().err
    assert main(["list", "--server", server.address]) == 1
    assert "error: " in capsys.readouterr().err


def test_imported_voices_are_listed_and_removed(tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    voices = ["--voices-dir", str(tmp_path / "voices")]
    assert main(["list", *voices]) == 0
    assert "no voice is registered" in capsys.readouterr().err
    spk2info: tuple[str | Path, ...] = ("--model-dir", tiny_model_dir, *voices, "--import-spk2info", tiny_model_dir / "spk2info.pt")
    assert run(*spk2info) == 0 and run(*spk2info, "--rename", "001=narrator") == 0
    assert run(*spk2info, "--rename", "002=x") == 1
    assert "no speaker '002'" in capsys.readouterr().err
    assert main(["list", *voices]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["001", "narrator"]
    assert main(["remove", "001", *voices]) == 0
    registry = VoiceRegistry(tmp_path / "voices")
    assert registry.speaker_ids() == ["narrator"] and registry.load("narrator").speech_tokens.shape == (50,)
    assert len(list((tmp_path / "voices").iterdir())) == 2, "one voice is two files"
    assert main(["remove", "001", *voices]) == 1
    assert "No voice is registered as '001'" in capsys.readouterr().err
    assert main(["remove", "../narrator", *voices]) == 1


def test_a_damaged_voice_is_listed_as_such_and_can_be_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "anna.json").write_text("{", encoding="utf-8")
    assert main(["list", "--voices-dir", str(tmp_path)]) == 0
    assert "'anna' are damaged" in capsys.readouterr().out
    assert main(["remove", "anna", "--voices-dir", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir())


def test_a_voice_of_labels(tiny_spark_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its labels and its seed make it, and it can be listed and made again."""
    common: tuple[str | Path, ...] = ("--model-dir", tiny_spark_dir, "--voices-dir", tmp_path, "--gender", "male", "--pitch", "low")
    for name, seed in (("anna", "7"), ("again", "7"), ("other", "8")):
        assert run(name, *common, "--seed", seed) == 0
    assert f"anna: a voice without a recording in {tmp_path}" in capsys.readouterr().out
    registry = VoiceRegistry(tmp_path)
    anna, again, other = (SpeakerTokens.of(registry.load(name).speaker_tokens.tolist()) for name in ("anna", "again", "other"))
    assert anna == again != other and anna.labels == Labels("male", "low", "moderate")
    assert main(["list", "--voices-dir", str(tmp_path)]) == 0
    assert "anna: a voice without a recording, ''" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("../x", "--reference-audio", REFERENCE, "--reference-text", "a"), "speaker_id"),
        (("a", "--reference-audio", REFERENCE, "--reference-text", "  "), "transcript"),
        (("a", "--reference-audio", "absent.wav", "--reference-text", "a"), "absent.wav"),
        (("--import-spk2info", "absent.pt"), "absent.pt"),
        (("a", "--gender", "male"), "makes no voices of labels"),
        (("a", "--gender", "male", "--seed", "-1"), "seed is -1"),
    ],
)
def test_mistakes_end_with_a_sentence(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str | Path, ...], words: str
) -> None:
    assert run("--model-dir", tiny_model_dir, "--voices-dir", tmp_path / "voices", *arguments) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "voices").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("a",),
        ("--import-spk2info", "f", "--reference-text", "a"),
        ("a", "--rename", "a=b"),
        ("--rename", "a"),
        ("--gender", "male"),
        ("a", "--pitch", "low"),
        ("a", "--gender", "neutral"),
        ("a", "--gender", "male", "--reference-audio", "a.wav", "--reference-text", "a"),
        ("--import-spk2info", "f", "--gender", "male"),
    ],
)
def test_arguments_that_do_not_go_together(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("--model-dir", "m", "--voices-dir", "v", *arguments)
    assert stopped.value.code == 2


def test_listing_and_removing_need_no_package_of_the_server(tiny_model_dir: Path, tmp_path: Path) -> None:
    assert run("--model-dir", tiny_model_dir, "--voices-dir", tmp_path / "voices", "--import-spk2info", tiny_model_dir / "spk2info.pt") == 0
    blocked = "yaml torch onnx onnxruntime safetensors tokenizers tqdm wetext av"
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}.split()))\n"
        "from bistream.commands.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def voices(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "voices", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert voices("list").stdout.startswith("001: 2.00 s"), "of the folder that run.sh serves"
    assert voices("remove", "001").returncode == 0 and not list((tmp_path / "voices").iterdir())
    adding = voices("add", "anna", "--model-dir", str(tiny_model_dir), "--reference-audio", str(REFERENCE), "--reference-text", "Hi.")
    assert adding.returncode == 2 and re.fullmatch(r"error: The package \w+ is not installed; .*\[server\]'\n", adding.stderr)


SPEECH = speech_like(5 * 16_000)
SAID = "x" * 75  # 15 letters a second


def advised(speech: FloatArray, transcript: str = SAID) -> str:
    return "; ".join(advice(speech.astype(np.float32), transcript))


@pytest.mark.parametrize(
    ("transcript", "words"),
    [
        ("x" * 36, "too short"), ("x" * 39, ""), ("x" * 149, ""), ("x" * 152, "too long"), ("你" * 11, "too short"), ("你" * 12, ""),
        ("你" * 45, ""), ("你" * 46, "too long"),
    ],
)  # fmt: skip
def test_a_transcript_that_cannot_belong_to_the_recording_is_told(transcript: str, words: str) -> None:
    told = advised(SPEECH, transcript)
    assert ("the transcript is" in told) == bool(words) and words in told

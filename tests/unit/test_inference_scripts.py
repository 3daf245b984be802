"""The inference scripts: their input, their output and their errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from bistream.errors import InvalidInputError
from bistream.evaluation.dataset import read_manifest
from scripts import _chunk_strategy, offline_inference, streaming_inference
from tests.formats import CHUNK_TOKENS
from tests.sounds import speech_like


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Two utterances, with an empty line between them."""
    soundfile.write(tmp_path / "voice.wav", speech_like(), 16000)
    path = tmp_path / "meta.lst"
    path.write_text("a|A tone.|voice.wav|Hi.\n\nb|A tone.|voice.wav|You.\n", encoding="utf-8")
    return path


def options(model_dir: Path, manifest: Path, output: Path) -> list[str]:
    base = ["--model-dir", str(model_dir), "--manifest", str(manifest), "--output-dir", str(output)]
    return [*base, "--device", "cpu", "--dtype", "float32", "--num-threads", "1"]


def test_offline_writes_wavs_and_the_log(brief_model_dir: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert offline_inference.main(options(brief_model_dir, manifest, output)) == 0
    log = json.loads((output / "log.json").read_text(encoding="utf-8"))
    assert [entry["name"] for entry in log["utterances"]] == ["a", "b"]
    for entry in log["utterances"]:
        info = soundfile.info(output / f"{entry['name']}.wav")
        assert (info.samplerate, info.channels) == (24000, 1)
        assert info.frames / 24000 == pytest.approx(entry["audio_s"])
    assert log["audio_s"] == pytest.approx(sum(entry["audio_s"] for entry in log["utterances"]))
    assert log["real_time_factor"] == pytest.approx(log["wall_s"] / log["audio_s"])
    assert min(log[stage] for stage in ("voice_s", "language_model_s", "token2wav_s")) > 0
    assert "real-time factor" in capsys.readouterr().out


def test_streaming_writes_chunks_and_continues_after_an_error(
    brief_model_dir: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "short.wav", np.zeros(100), 16000)
    manifest.write_text(manifest.read_text(encoding="utf-8") + "c|Nothing.|short.wav|Hello.\n", encoding="utf-8")
    output = tmp_path / "out"
    assert streaming_inference.main(options(brief_model_dir, manifest, output)) == 1
    reports = json.loads((output / "log.json").read_text(encoding="utf-8"))["utterances"]
    assert [report["error"] is None for report in reports] == [True, True, False]
    for report, name in zip(reports[:2], "ab", strict=True):
        assert soundfile.info(output / f"{name}.wav").frames / 24000 == pytest.approx(report["audio_s"])
        assert report["chunks"][-1]["text_consumed"] == len("You." if name == "b" else "Hi.")
        assert report["time_to_first_audio_s"] <= report["wall_s"]
    assert "INVALID_INPUT" in reports[2]["error"]
    assert "first audio after" in capsys.readouterr().out


@pytest.fixture(scope="module")
def either_model_dir(
    request: pytest.FixtureRequest, brief_model_dir: Path, tiny_cosyvoice3_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """With a table of presets, which is not released for CosyVoice3 but made by upstream's library for both families."""
    if request.param == "cosyvoice2":
        return brief_model_dir
    made = Path(shutil.copytree(tiny_cosyvoice3_dir, tmp_path_factory.mktemp("model") / "tiny"))
    shutil.copy(brief_model_dir / "spk2info.pt", made)
    return made


@pytest.mark.parametrize(
    "either_model_dir, main, manner",
    [
        ("cosyvoice2", offline_inference.main, ["--text", "Hi.", "--speaker-id", "001", "--instruct-text", "Softly."]),
        ("cosyvoice2", streaming_inference.main, ["--source-audio", "{voice}", "--speaker-id", "001", "--speed", "1.25"]),
        ("cosyvoice3", offline_inference.main, ["--source-audio", "{voice}", "--speaker-id", "001"]),
    ],
    ids=["instructed preset", "conversion in chunks", "conversion"],
    indirect=["either_model_dir"],
)
def test_manners_of_speaking(main: Any, manner: list[str], either_model_dir: Path, manifest: Path, tmp_path: Path) -> None:
    voice, output = str(manifest.parent / "voice.wav"), tmp_path / "out"
    given = [voice if word == "{voice}" else word for word in manner]
    base = [
        "--model-dir", str(either_model_dir), "--output-dir", str(output), "--device", "cpu", "--dtype", "float32", "--num-threads", "1",
    ]  # fmt: skip
    assert main([*base, *given]) == 0
    (wav,) = output.glob("*.wav")
    assert wav.stem == ("voice" if "--source-audio" in manner else "utterance")
    if "--source-audio" in manner:
        assert soundfile.info(wav).frames == (19200 if "--speed" in manner else 24000), "the second of the source"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a|only|three", "Line 1"),
        ("a||voice.wav|text", "Line 1"),
        ("../a|t|voice.wav|text", "file name"),
        ("a|t|missing.wav|text", "missing.wav"),
    ],
)
def test_a_bad_line_of_a_manifest_is_named(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "meta.lst").write_text(line, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=words):
        read_manifest(tmp_path / "meta.lst")


def test_a_strategy_has_room_for_the_whole_of_a_long_utterance(
    tiny_cosyvoice3_dir: Path, manifest: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the share of one session in a server's automatic budget; --flow-state-mb takes the room away."""
    row = {"id": "a", "prompt_audio": "voice.wav", "prompt_text": "A tone.", "target_text": "Hi."}
    base = ["--model-dir", str(tiny_cosyvoice3_dir), "--output-dir", str(tmp_path / "out"), "--device", "cpu", "--dtype", "float32"]
    given = [*base, "--num-threads", "1", "--strategy", "exponential", "--dataset", str(tmp_path / "set.jsonl")]

    for module in ("state_budget", "stage"):
        monkeypatch.setattr(f"bistream.token2mel.{module}.AUTO_SESSION_S", 2)
    tokens = [number * 7 % 6561 for number in range(4 * CHUNK_TOKENS)]
    (tmp_path / "set.jsonl").write_text(json.dumps({**row, "target_audio_cosy2_tokens": tokens}) + "\n", encoding="utf-8")
    assert streaming_inference.main(given) == 0 and "flow state is full" not in caplog.text
    assert streaming_inference.main([*given, "--flow-state-mb", "1"]) == 0 and "flow state is full" in caplog.text


def test_a_strategy_scores_its_joints(
    tiny_model_dir: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens come from the data set, so that no language model is loaded; a set without them has one make them. Each utterance is told
    when it is spoken, not at the end."""
    told: list[str] = []

    def observed(*arguments: Any) -> dict[str, Any]:
        log = _chunk_strategy.stream_all(*arguments)
        told.append(capsys.readouterr().out)
        return log

    monkeypatch.setattr(streaming_inference, "stream_all", observed)
    tokens = [number * 7 % 6561 for number in range(70)]
    row = {"id": "a", "prompt_audio": "voice.wav", "prompt_text": "A tone.", "target_text": "Hi."}
    rows = [{**row, "target_audio_cosy2_tokens": tokens}, {**row, "id": "b", "target_audio_cosy2_tokens": [9999]}]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    base = ["--model-dir", str(tiny_model_dir), "--output-dir", str(tmp_path / "out"), "--device", "cpu", "--dtype", "float32"]
    given = [*base, "--num-threads", "1", "--strategy", "equal", "--dataset", str(tmp_path / "set.jsonl")]
    assert streaming_inference.main(given) == 1
    log = json.loads((tmp_path / "out" / "log.json").read_text(encoding="utf-8"))
    good, bad = log["utterances"]
    assert [chunk["tokens"] for chunk in good["chunks"]] == [28, 25, 17] and log["chunks"] == 3
    assert good["audio_s"] == pytest.approx(70 / 25) == pytest.approx(soundfile.info(tmp_path / "out" / "a.wav").frames / 24000)
    assert len(good["seams"]["joints"]) == 2
    assert good["seams"]["worst_click_db"] < 0.5 and good["seams"]["worst_level_step_db"] < 0.67, "as in tests/unit/mel2wav/test_stage.py"
    assert "INVALID_INPUT" in bad["error"] and "worst joint" in told[0] and bad["error"] in told[0]
    with pytest.raises(SystemExit):
        streaming_inference.main([*given, "--whole-text"])

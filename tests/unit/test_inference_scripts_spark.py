"""The inference scripts and the benchmark without a server, with a family of other rates that has a codec in place of flow and vocoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile

from benchmarks import offline
from bistream.families.spark import SPARK
from bistream.text2token.speech_lengths import SpeechLengths
from scripts import offline_inference, streaming_inference
from scripts._chunk_strategy import schedule
from tests.unit.benchmarks.sets import write_jsonl

RATES = SPARK.audio_format
RATE = RATES.sample_rate


@pytest.fixture(autouse=True)
def bounded_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights rarely end by themselves."""
    monkeypatch.setattr(SpeechLengths, "most", lambda *_: 60)


@pytest.fixture
def given(tiny_spark_dir: Path, tmp_path: Path) -> list[str]:
    """Two rows, a and b, and where to compute. A model directory with what stage 0 downloads: a release has no other files."""
    source, release = write_jsonl(tmp_path, ["Hi.", "You."]), tmp_path / "release"
    for names in SPARK.required_files:
        (release / names[0]).parent.mkdir(parents=True, exist_ok=True)
        (release / names[0]).symlink_to(tiny_spark_dir / names[0])
    return ["--model-dir", str(release), "--dataset", str(source), "--device", "cpu", "--dtype", "float32", "--num-threads", "1"]


@pytest.mark.parametrize("main", [offline_inference.main, streaming_inference.main], ids=["offline", "streaming"])
def test_the_scripts_write_what_was_spoken(main: Any, given: list[str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert main([*given, "--output-dir", str(output)]) == 0
    for entry, name in zip(json.loads((output / "log.json").read_text())["utterances"], "ab", strict=True):
        info = soundfile.info(output / f"{name}.wav")
        assert info.samplerate == RATE and info.frames % RATES.samples_per_token == 0
        assert entry["error"] is None and entry["audio_s"] == pytest.approx(info.frames / RATE, abs=1e-3) != 0


def test_a_strategy_has_the_familys_chunks(given: list[str], tmp_path: Path) -> None:
    """The streamed audio is that of the whole utterance, so the seam meter finds nothing. The data set's tokens are another family's."""
    output, source = tmp_path / "out", Path(given[3])
    rows = [{**json.loads(line), "target_audio_cosy2_tokens": [1, 2, 3]} for line in source.read_text().splitlines()]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert streaming_inference.main([*given, "--output-dir", str(output), "--strategy", "exponential"]) == 0
    for entry in json.loads((output / "log.json").read_text())["utterances"]:
        sizes = [chunk["tokens"] for chunk in entry["chunks"]]
        assert sum(sizes) > 3 and sizes == schedule("exponential", sum(sizes), RATES)
        assert entry["audio_s"] == pytest.approx(sum(sizes) / RATES.tokens_per_second)
        assert entry["audio_s"] == pytest.approx(soundfile.info(output / f"{entry['name']}.wav").duration)
        assert len(entry["seams"]["joints"]) == len(sizes) - 1
        assert entry["seams"]["worst_click_db"] < 0.1 and entry["seams"]["worst_level_step_db"] < 0.1


def test_batches_are_counted_at_the_familys_rate(given: list[str], tmp_path: Path) -> None:
    assert offline.main([*given, "--batch-size", "2", "--warm-up", "0", "--wavs", "--upstream-files", "--out", str(tmp_path)]) == 0
    (run,) = json.loads((tmp_path / "result.json").read_text())["metrics"]["runs"]
    infos = [soundfile.info(tmp_path / "batch-2" / f"{name}.wav") for name in "ab"]
    assert run["failed"] == 0 and {info.samplerate for info in infos} == {RATE}
    assert run["audio_s"] == pytest.approx(sum(info.duration for info in infos), abs=1e-3)

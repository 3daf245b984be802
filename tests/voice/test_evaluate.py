"""The whole command on the trained voice: a few sentences in each form, judged; noise in its place is told from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from bistream.commands.evaluate import main
from bistream.evaluation.sets import read_sets
from tests.voice.conftest import JUDGES, VOICE_DIR
from tests.voice.speaking import VOICE

COUNT = 3
MOST_WORD_ERRORS = "30%"  # of three sentences


@pytest.mark.skipif(not JUDGES.exists(), reason="install the judges: bash run.sh judges")
def test_a_trained_voice_is_told_from_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "noise/english").mkdir(parents=True)
    for sentence in read_sets(["english"], COUNT):
        noise = 0.05 * np.random.default_rng(sentence.number).standard_normal(48_000)
        soundfile.write(tmp_path / "noise/english" / f"{sentence.id}.wav", noise, 24_000)
    words = ["--model-dir", VOICE_DIR, "--speaker-id", VOICE, "--similar-to", VOICE_DIR / "recordings" / f"{VOICE}.wav"]
    words += ["--set", "english", "--set", "chinese", "--count", COUNT, "--recordings", f"noise={tmp_path / 'noise'}"]
    words += ["--judge", "whisper=tiny.en", "--judge", "campplus", "--judge", "paraformer=none", "--judges-python", JUDGES]
    conditions = [f"wer:{form}>{MOST_WORD_ERRORS}" for form in ("reference", "one_shot", "word_by_word")]
    conditions += ["wer:noise<80%", "campplus:word_by_word-noise<0.1", "failures>0%"]
    words += [word for condition in conditions for word in ("--fail-if", condition)]
    common = [*map(str, words), "--setting", "num_threads=1", "--setting", "left_context_chunks=4", "--out", str(tmp_path / "report")]
    assert main(common) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert f"{COUNT} sentences of the set chinese were left out" in said and "paraformer did not judge" in said
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["equal"]["noise-reference"] == [0, COUNT]
    assert {judge["name"] for judge in report["judges"] if judge.get("memory_mb", 0) > 50} == {"whisper", "campplus"}
    forms = report["sentences"][0]["forms"]
    assert forms["one_shot"]["first_audio_s"] > 0 and forms["noise"]["errors"] > 0
    assert (tmp_path / "report.html").stat().st_size > 100_000

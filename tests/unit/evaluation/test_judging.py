"""The judges' processes, with a stand-in for their environment's Python: each sound is judged once, and a judge that cannot says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bistream.errors import BistreamError, EngineError
from bistream.evaluation.judge_process import JudgeChoice, JudgeProcess
from bistream.evaluation.judging import chosen_judges, judge_all
from bistream.evaluation.sets import Sentence
from bistream.evaluation.speaking import Utterance

HEARS = """#!/bin/sh
echo '{"packages": {"ears": "1"}}'
while read -r line; do echo "$line" >> LOG; echo '{"heard": "one two four"}'; done
echo '{"load_s": 1.0, "judge_s": 2.0, "memory_mb": 3}'
"""
DEAF = """#!/bin/sh
echo '{"unavailable": "ModuleNotFoundError: no ears"}'
"""
SENTENCES = [Sentence(0, "s", "a", "One, two, three.", "en"), Sentence(1, "s", "b", "One two four", "en")]


def python(folder: Path, program: str) -> Path:
    path = folder / "python"
    path.write_text(program.replace("LOG", str(folder / "log")), encoding="utf-8")
    os.chmod(path, 0o755)
    return path


def utterance(folder: Path, digest: str) -> Utterance:
    return Utterance(folder / f"{digest}.wav", digest, {"is_failed": False, "seconds": 1.0})


@pytest.mark.parametrize("processes", [1, 3])
def test_each_sound_is_judged_once_and_forms_with_equal_samples_share_it(tmp_path: Path, processes: int) -> None:
    spoken = {
        "one_shot": {0: utterance(tmp_path, "x"), 1: utterance(tmp_path, "y")},
        "word_by_word": {0: utterance(tmp_path, "x"), 1: Utterance(None, "", {"is_failed": True}, "refused")},
    }
    told = list[int]()
    (report,) = judge_all(
        SENTENCES, spoken, [JudgeChoice("whisper", "base")], python(tmp_path, HEARS), processes, None, lambda: told.append(1)
    )
    assert len((tmp_path / "log").read_text(encoding="utf-8").splitlines()) == len(told) == report["sounds"] == 2
    assert report["packages"] == {"ears": "1"} and report["memory_mb"] == 3 * min(processes, 2)
    scores = {name: [(one.scores["errors"], one.scores["units"]) for one in form.values()] for name, form in spoken.items()}
    assert scores == {"one_shot": [(1, 3), (0, 3)], "word_by_word": [(1, 3), (3, 3)]}
    assert spoken["one_shot"][0].scores["is_early_end"] is False and "is_runaway" not in spoken["word_by_word"][1].scores


def test_a_judge_that_cannot_judge_says_why(tmp_path: Path) -> None:
    spoken = {"one_shot": {0: utterance(tmp_path, "x")}}
    choices = [JudgeChoice("whisper", "base"), JudgeChoice("speaker")]
    deaf, aimless = judge_all(SENTENCES, spoken, choices, python(tmp_path, DEAF), 1, None, lambda: None)
    assert "no ears" in deaf["unavailable"] and "--similar-to" in aimless["unavailable"]
    (missing,) = judge_all(SENTENCES, spoken, choices[:1], tmp_path / "nowhere", 1, None, lambda: None)
    assert "run.sh judges" in missing["unavailable"] and "errors" not in spoken["one_shot"][0].scores


def test_a_judge_that_dies_is_an_error(tmp_path: Path) -> None:
    dying = python(tmp_path, HEARS.replace("while", "read -r line; exit 1; while"))
    with JudgeProcess(JudgeChoice("whisper"), dying) as process, pytest.raises(EngineError):
        process.judge(tmp_path / "x.wav", "One.", "en")


def test_chosen_judges(tmp_path: Path) -> None:
    assert chosen_judges(["whisper", "campplus"], None) == [JudgeChoice("whisper", "base")]
    assert chosen_judges(["whisper=tiny.en", "campplus"], tmp_path)[1].model == str(tmp_path.resolve())
    for wrong in ("ears", "paraformer"):
        with pytest.raises(BistreamError):
            chosen_judges([wrong], None)

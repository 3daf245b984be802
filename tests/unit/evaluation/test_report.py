"""The report of utterances that were judged: means, the worst sentences, JSON, and the page in a browser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from bistream.evaluation.forms import make_forms, pairs_of
from bistream.evaluation.report import describe, equal_sounds, means_of, worst, write
from bistream.evaluation.sets import Sentence
from bistream.evaluation.speaking import Utterance

CHROMIUM = Path("/usr/bin/chromium")
FORMS = make_forms(["one_shot", "word_by_word"], ["solver_steps=5"], [])
PAIRS = pairs_of(FORMS)
TEXT = "Sentence {} </script> & more."
SENTENCES = [Sentence(one, "first" if one < 4 else "second", f"{one:03d}", TEXT.format(one), "en") for one in range(6)]
FACTS: Mapping[str, Any] = {
    "model": "voice",
    "command": "bistream evaluate",
    "family": "Family",
    "hash": "0" * 16,
    "packages": {"numpy": "1"},
    "settings": [],
    "notes": ["A note."],
    "judges": [{"name": "dnsmos", "model": "", "unavailable": "it is not there"}],
}


@pytest.fixture
def spoken(tmp_path: Path) -> dict[str, dict[int, Utterance]]:
    """The third form is worse in every sentence; it failed in the first one."""
    sound = tmp_path / "sound.wav"
    soundfile.write(sound, 0.1 * np.sin(np.arange(12_000) / 20), 24_000)

    def one(form: str, number: int) -> Utterance:
        is_worse = form == "solver_steps=5"
        if is_worse and number == 0:
            return Utterance(None, "", {"is_failed": True, "errors": 10, "units": 10}, "refused <b>")
        scores = {"is_failed": False, "errors": number % 3 + is_worse, "units": 10, "overall": 3.0 - is_worse, "heard": "heard <b>"}
        return Utterance(sound, f"{'worse' if is_worse else 'same'}{number}", scores)

    return {form.name: {sentence.number: one(form.name, sentence.number) for sentence in SENTENCES} for form in FORMS}


def test_means_are_of_each_set_and_differences_are_paired(spoken: dict[str, dict[int, Utterance]]) -> None:
    means = means_of(SENTENCES, spoken, PAIRS)
    assert list(means) == ["all", "first", "second"]
    assert means["first"]["one_shot"]["wer"].value == pytest.approx(0.075) and means["first"]["one_shot"]["wer"].count == 4
    assert means["all"]["solver_steps=5"]["failures"].value == pytest.approx(1 / 6)
    assert means["second"]["solver_steps=5-word_by_word"]["wer"].value == pytest.approx(0.1)
    assert means["all"]["word_by_word-one_shot"]["dnsmos"].value == 0.0
    assert "speaker" not in means["all"]["one_shot"]
    assert list(means_of(SENTENCES[:4], spoken, PAIRS)) == ["first"]


def test_equal_samples_are_counted_and_the_worst_come_first(spoken: dict[str, dict[int, Utterance]]) -> None:
    assert equal_sounds(spoken, PAIRS) == {"solver_steps=5-word_by_word": [0, 5], "word_by_word-one_shot": [6, 6]}
    found = worst(spoken, 3)
    assert found[0] == 0 and set(found[1:]) == {2, 5}


def written(folder: Path, spoken: dict[str, dict[int, Utterance]]) -> dict[str, Any]:
    means = means_of(SENTENCES, spoken, PAIRS)
    facts = {**FACTS, "equal": equal_sounds(spoken, PAIRS)}
    write(folder / "out/report", describe(SENTENCES, FORMS, spoken, means, facts, worst(spoken, 3)), spoken, 2)
    found: dict[str, Any] = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    return found


def test_the_json_has_everything(tmp_path: Path, spoken: dict[str, dict[int, Utterance]]) -> None:
    found = written(tmp_path, spoken)
    assert [row["text"] for row in found["sentences"]] == [one.text for one in SENTENCES]
    assert found["sentences"][0]["forms"]["solver_steps=5"]["error"] == "refused <b>"
    assert found["means"]["all"]["one_shot"]["wer"][3] == 6 and len(found["worst"]) == 3
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert page.count("data:audio/mpeg;base64,") == 3  # of the two worst sentences: the first failed in the form that differs


@pytest.mark.skipif(not CHROMIUM.exists(), reason="apt-get install --no-install-recommends chromium")
def test_a_browser_shows_it(tmp_path: Path, spoken: dict[str, dict[int, Utterance]]) -> None:
    written(tmp_path, spoken)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    done = subprocess.run([*command, f"file://{tmp_path}/out/report.html"], capture_output=True, text=True, timeout=120, check=True)
    page = done.stdout
    assert page.count('class="sentence"') == 3 and page.count("<audio") == 6 - 1 and page.count("<svg") == 3  # words, DNSMOS, failures
    assert "Sentence 0 &lt;/script&gt; &amp; more." in page and "refused &lt;b&gt;" in page and "word_by_word-one_shot" in page
    assert 'aria-pressed="true">all' in page and "A note." in page and "it is not there" in page

"""What report.py reads of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.report import latency_curve, read_measurement

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


@pytest.mark.parametrize("name", ["sessions-h200", "graphs-h200", "first-audio-bursts-h200"])
def test_results_of_every_form_have_a_curve(name: str) -> None:
    measurement = read_measurement(RESULTS / f"{name}.json")
    callers, values = latency_curve(measurement, "p50")
    assert callers == sorted(set(callers)) and len(callers) >= 3 and min(values) > 0


def test_the_readme_s_picture_is_drawn(tmp_path: Path) -> None:
    results = [str(RESULTS / f"{name}-h200.json") for name in ("sessions", "graphs")]
    assert report.main([*results, "--names", "here", "there", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.json").write_text('{"metrics": {"runs": []}}')
    for path, words in ((RESULTS / "lm-h200.json", "not the result"), (tmp_path / "empty.json", "no run with a number of callers")):
        assert report.main([str(path), "--out", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err

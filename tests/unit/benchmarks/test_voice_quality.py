"""How ``benchmarks/voice_quality.py`` cuts texts and sums up what the judges said; the judges themselves are in another environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.voice_quality import centroid, pieces_of, summary

A, B = np.array([1.0, 0.0]), np.array([0.0, 1.0])


@given(st.text(alphabet="abc .,", min_size=1, max_size=40), st.sampled_from(["words", "characters"]))
def test_pieces_are_the_text(text: str, kind: str) -> None:
    assert "".join(pieces_of(text, kind)) == text


def judged(name: str, errors: list[int], voice: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    rows = [
        {"number": number, "words": 10, "errors": wrong, "seconds": 2.0, "teacher_s": 2.0 if number else 1.0, "voice": voice.tolist()}
        for number, wrong in enumerate(errors)
    ]
    return {"system": name, "sentences": rows}


def test_summary() -> None:
    centroids = {"a-teacher": centroid(judged("a-teacher", [0], A)), "b-teacher": centroid(judged("b-teacher", [0], B))}
    row = summary(judged("a-words", [0, 5, 10, 0], A), centroids)
    assert row["word_errors_percent"] == 37.5 and 0 < row["plus_minus"] < 60
    assert row["similarity"] == {"a-teacher": 1.0, "b-teacher": 0.0}
    assert (row["identified_percent"], row["ahead_of_others"]) == (100.0, 1.0)
    assert summary(judged("b-words", [0], A), centroids)["identified_percent"] == 0.0
    assert "identified_percent" not in summary(judged("c-words", [0], A), centroids)
    assert row["length_ratio"] == pytest.approx(1.25) and row["length_inside_percent"] == 75.0
    assert summary(judged("all", [0, 0], A), {})["plus_minus"] == 0.0

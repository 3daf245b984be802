"""``bistream detect``: its lines and exit codes, with a detector that reads the confidence off the loudest sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from bistream.commands import detect
from bistream.errors import ConfigError
from bistream.types import FloatArray
from bistream.watermark.detector import SHORTEST_S

RATE = 16_000


class LoudestSample:
    def __init__(self) -> None:
        self.lengths: list[int] = []

    def confidence(self, samples: FloatArray, sample_rate: int) -> float:
        self.lengths.append(len(samples))
        return float(np.abs(samples).max())


@pytest.fixture(autouse=True)
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "Detector", LoudestSample)


def file(folder: Path, name: str, confidence: float, seconds: float = 1.0) -> str:
    samples = np.zeros(int(seconds * RATE), np.float32)
    samples[-1] = confidence
    soundfile.write(folder / name, samples, RATE, subtype="FLOAT")
    return str(folder / name)


def test_each_file_has_its_line_and_the_worst_code_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marked, unmarked = file(tmp_path, "a.wav", 0.75), file(tmp_path, "b.wav", 0.25)
    short, missing = file(tmp_path, "c.wav", 1.0, SHORTEST_S - 0.1), str(tmp_path / "d.wav")
    assert [detect.main(list(files)) for files in ([marked], [unmarked, marked], [short, marked], [missing])] == [0, 1, 2, 2]
    said = capsys.readouterr()
    assert said.out.splitlines()[:2] == [f"{marked}: marked (0.750)", f"{unmarked}: not marked (0.250)"]
    assert all(line.startswith("error: ") and path in line for line, path in zip(said.err.splitlines(), (short, missing), strict=True))


def test_more_than_two_minutes_are_read(tmp_path: Path) -> None:
    assert detect.main([file(tmp_path, "long.wav", 0.75, 125.0)]) == 0


@given(seconds=st.floats(SHORTEST_S, 200.0))
def test_parts_are_neither_short_nor_long_and_the_surest_counts(seconds: float) -> None:
    detector, samples = LoudestSample(), np.zeros(round(seconds * 100), np.float32)
    samples[-1] = 0.5
    assert detect.surest(detector, samples, 100) == 0.5  # type: ignore[arg-type]
    assert sum(detector.lengths) == len(samples) and max(detector.lengths) < 2 * 100 * detect.PART_S
    assert min(detector.lengths) >= min(len(samples), 0.9 * 100 * detect.PART_S)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ConfigError("The watermark needs a package.")

    monkeypatch.setattr(detect, "Detector", fail)
    assert detect.main(["a.wav"]) == 2 and capsys.readouterr().err == "error: The watermark needs a package.\n"

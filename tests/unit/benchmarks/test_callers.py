"""The load generator: recordings that nobody has sent before, callers who go on, and what is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks import first_audio
from benchmarks.first_audio import heard
from bistream.client.report import ChunkRecord, SessionReport
from tests.unit.client.fake_server import FakeServer, Speakers


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer(Speakers())
    yield server
    server.stop()


@pytest.fixture
def recording(tmp_path: Path) -> str:
    path = tmp_path / "voice.wav"
    soundfile.write(path, 0.1 * np.sin(np.arange(16000) / 20), 16000)
    return str(path)


def report(error: str | None, *arrived_s: float) -> SessionReport:
    return SessionReport("s", [ChunkRecord(at, 0.1, 0) for at in arrived_s], error=error)


def test_refusals_failures_and_gaps_are_told_apart() -> None:
    reports = [report(None, 0.2, 0.25), report(None, 0.4, 0.7), report("BUSY: Full."), report("ENGINE_ERROR: Lost.", 0.1), report(None)]
    found = heard(reports)
    counts = {"sessions": 5, "refused": 1, "failed": 2, "sessions_with_gap": 1, "longest_gap_ms": 200.0, "audio_s": 0.4}
    assert {name: found[name] for name in counts} == counts
    assert found["first_audio_client_ms"]["p50"] == 300.0


def test_the_program_tells_of_both_kinds_of_callers(
    server: FakeServer, recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_audio, "check_server", lambda *arguments, **options: 24_000)
    out = tmp_path / "out.json"
    words = ["--server", server.address, "--closed", "2", "--fresh", "20", "--seconds", "0.2", "--text", "Hi.", "--speaker-id", "anna"]
    words += ["--reference-audio", recording, "--reference-text", "Hi.", "--processes", "1", "--out", str(out)]
    assert first_audio.main(words) == 0
    alone, beside = json.loads(out.read_text())["metrics"]["runs"]
    assert (alone["load"], beside["load"]) == ("closed 2", "closed 2, fresh 20/s")
    assert "fresh" not in alone and alone["sessions"] >= 2
    assert beside["fresh"]["failed"] == beside["failed"] == 0 < beside["fresh"]["sessions"]
    assert "new voices" in capsys.readouterr().out

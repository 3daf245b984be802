"""The load generator: recordings that nobody has sent before, callers who go on, and what is counted."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks import first_audio
from benchmarks._callers import Caller, Speech, fresh_voice, prepare, run_loads
from benchmarks.first_audio import heard
from bistream.client.report import ChunkRecord, SessionReport
from bistream.contract.voices import reference_hash
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


def test_every_session_has_a_recording_of_its_own_that_sounds_the_same() -> None:
    voice = {"reference_wav": np.linspace(-0.5, 0.5, 16000, dtype=np.float32), "reference_text": "Hi."}
    fresh = [fresh_voice(voice, seed) for seed in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))]
    assert len({reference_hash(**one) for one in (voice, *fresh)}) == 5
    for one in fresh:
        assert one["reference_wav"].dtype == np.float32 and np.abs(one["reference_wav"] - voice["reference_wav"]).max() < 1e-3
    assert reference_hash(**fresh[0]) == reference_hash(**fresh_voice(voice, (0, 0, 0)))


def test_fresh_recordings_of_about_a_length() -> None:
    voice = {"reference_wav": np.linspace(-0.5, 0.5, 16000, dtype=np.float32), "reference_text": "Hi."}
    lengths = [len(fresh_voice(voice, (0, number, 0), 5.0)["reference_wav"]) for number in range(20)]
    assert len(set(lengths)) == 20 and all(64_000 <= length <= 96_000 for length in lengths)
    again = fresh_voice(voice, (0, 0, 0), 5.0)["reference_wav"]
    assert np.abs(again[:16000] - again[16000:32000]).max() < 1e-3, "the recording again"


def test_two_loads_at_a_time_keep_their_reports_apart(server: FakeServer, recording: str) -> None:
    fresh = Speech(server.address, "Hi.", reference_audio=recording, reference_text="Hi.", fresh_seed=1)
    known = Speech(server.address, "You.", speaker_id="anna")
    loads = run_loads([(fresh, [Caller(number=n, requests=2) for n in range(2)]), (known, [Caller()])], 1)
    assert [[one.error for one in load.reports] for load in loads] == [[None] * 4, [None]]
    sent = [request.inputs["reference_wav"].tobytes() for request in server.received if "reference_wav" in request.inputs]
    assert len(set(sent)) == len(sent) == 4


def test_callers_go_on_until_their_time_is_over(server: FakeServer) -> None:
    (task,) = prepare((0, Speech(server.address, "Hi.", speaker_id="anna"), (Caller(requests=2, until_s=1.0),)))
    assert len(list(itertools.islice(task.results(time.monotonic() + 1e6), 5))) == 5  # its time has not come to an end
    assert len(list(task.results(time.monotonic() - 1e6))) == 2


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
    monkeypatch.setattr(first_audio, "check_server", lambda *arguments, **options: None)
    out = tmp_path / "out.json"
    words = ["--server", server.address, "--closed", "2", "--fresh", "4", "--seconds", "1", "--text", "Hi.", "--speaker-id", "anna"]
    words += ["--reference-audio", recording, "--reference-text", "Hi.", "--processes", "1", "--out", str(out)]
    assert first_audio.main(words) == 0
    alone, beside = json.loads(out.read_text())["metrics"]["runs"]
    assert (alone["load"], beside["load"]) == ("closed 2", "closed 2, fresh 4/s")
    assert "fresh" not in alone and alone["sessions"] >= 2
    assert beside["fresh"]["failed"] == beside["failed"] == 0 < beside["fresh"]["sessions"]
    assert "new voices" in capsys.readouterr().out

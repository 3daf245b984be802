"""The status of a model process: every beat is seen, silence is announced, and nothing of it harms the process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.metrics.catalogue import SESSIONS
from bistream.metrics.recorder import Recorder
from bistream.processes.control_files import CONTROL_VARIABLE, ProcessStatus, StatusFile, read_status
from bistream.triton.status_writer import StatusWriter
from tests.recorded import sample

WAIT_S = 120.0


def written(directory: Path) -> ProcessStatus:
    status = read_status(directory, "m", 1)
    assert status is not None
    return status


@pytest.fixture
def writer(tmp_path: Path) -> StatusWriter:
    return StatusWriter(StatusFile(tmp_path, "m", 1))


def test_every_beat_is_seen_and_changes_nothing_else(writer: StatusWriter, tmp_path: Path) -> None:
    writer.report_sessions(3)
    before = written(tmp_path)
    writer.beat()
    after = written(tmp_path)
    assert after.beats == before.beats + 1 and (after.sessions, after.is_drained) == (3, False)
    assert read_status(tmp_path, "m", 2) is None


def test_busy_times_nest_and_end(writer: StatusWriter, tmp_path: Path) -> None:
    with writer.busy(5.0, "short"):
        with writer.busy(300.0, "compiling the kernels of 3 shapes"):
            assert (written(tmp_path).busy_s, written(tmp_path).reason) == (300.0, "compiling the kernels of 3 shapes")
        assert written(tmp_path).busy_s == 5.0
    assert written(tmp_path).busy_s == 0.0


@given(st.text(max_size=300))
def test_any_reason_fits_and_leaves_nothing(tmp_path_factory: pytest.TempPathFactory, reason: str) -> None:
    directory = tmp_path_factory.mktemp("control")
    file = StatusFile(directory, "m", 1)
    writer = StatusWriter(file)
    with writer.busy(60.0, reason):
        assert written(directory).busy_s == 60.0
    assert (written(directory).busy_s, written(directory).reason) == (0.0, "")
    file.close()


def test_a_status_that_is_being_written_is_read_again(writer: StatusWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a drain would seem to be over while a front model writes how many sessions it has left."""
    whole = (tmp_path / "m-1.status").read_text(encoding="ascii")
    found = iter([whole[:20], whole])
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: next(found))
    assert written(tmp_path).beats == 1


def test_a_process_beats_and_reads_its_gauges_until_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    others, beaten, read = set(threading.enumerate()), threading.Event(), threading.Event()
    monkeypatch.setattr(StatusWriter, "beat", lambda self: beaten.set())
    writer, recorder = StatusWriter.of_this_process("m"), Recorder()
    beaten.clear()
    writer.record(recorder, "m")
    assert sample(recorder, "threads", model="m") >= 1, "all series exist before the model is ready"
    status = read_status(tmp_path, "m", os.getpid())
    assert status is not None and status.counted_at > 0.0

    def sessions() -> dict[tuple[str, ...], float]:
        read.set()
        return {}

    recorder.read(SESSIONS, sessions)
    assert beaten.wait(WAIT_S) and read.wait(WAIT_S)
    writer.stop()
    for thread in set(threading.enumerate()) - others:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_process_without_a_keeper_or_without_a_file_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    others = set(threading.enumerate())
    for said in (False, True):
        writer, recorder = StatusWriter.of_this_process("m"), Recorder()
        with writer.busy(1.0, "loading"):
            writer.record(recorder, "m")
        assert ("not watched" in caplog.text) is said and set(threading.enumerate()) <= others
        monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path / "absent"))

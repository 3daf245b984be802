"""From a process's recorder through the control folder to its reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bistream.control_files import CONTROL_VARIABLE
from bistream.metrics.exporter import Exporter, export_to_keeper, read_reports
from bistream.metrics.families import SESSION_STARTS
from bistream.metrics.recorder import Recorder

STARTS = ("bistream_session_starts_total", ())


def test_what_was_counted_until_the_stop_is_read(tmp_path: Path) -> None:
    recorder = Recorder()
    counter = recorder.counter(SESSION_STARTS)
    exporter = Exporter(tmp_path, "a-model", recorder, interval_s=1000.0)
    exporter.start()
    (report,) = read_reports(tmp_path)
    assert (report.model_name, report.snapshot.values[STARTS], report.is_alive) == ("a-model", 0, True)
    counter.add(3)
    exporter.stop()
    exporter.stop()
    (report,) = read_reports(tmp_path)
    values = report.snapshot.values
    assert values[STARTS] == 3
    assert values["bistream_threads", ("a-model",)] >= 1 and values["bistream_process_cpu_seconds_total", ("a-model",)] > 0
    assert values["bistream_process_resident_memory_bytes", ("a-model",)] > 1e6
    assert list(tmp_path.iterdir()) == [tmp_path / f"a-model-{os.getpid()}.metrics"]


def test_age_and_end_of_a_process_are_reported(tmp_path: Path) -> None:
    Exporter(tmp_path, "model", Recorder()).write()
    written_at = next(tmp_path.iterdir()).stat().st_mtime
    (report,) = read_reports(tmp_path, is_alive=lambda pid: pid != os.getpid(), now=lambda: written_at + 4.0)
    assert report.age_s == pytest.approx(4.0) and not report.is_alive


def test_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    Exporter(tmp_path, "model", Recorder()).write()
    (tmp_path / "other-1.metrics").write_text("{")
    (tmp_path / "llm_bistream-1.door").write_text("serving")
    assert [report.model_name for report in read_reports(tmp_path)] == ["model"]


def test_a_folder_that_is_gone_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(tmp_path / "gone", "model", Recorder())
    exporter.write()
    exporter.write()
    assert len([message for message in caplog.messages if "could not be written" in message]) == 1


def test_without_a_keeper_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    export_to_keeper("model", Recorder())()
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    stop = export_to_keeper("model", Recorder())
    assert len(read_reports(tmp_path)) == 1
    stop()

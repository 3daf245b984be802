"""Heartbeats through their file: they count, announce silence, and never harm the process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bistream import heartbeats
from bistream.heartbeats import Beat, Heartbeat, busy, read_beat


def test_every_beat_is_seen(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, "token2wav", 7)
    assert read_beat(tmp_path, "token2wav", 7) == Beat(1, 0.0, "-")
    heart.beat()
    assert read_beat(tmp_path, "token2wav", 7) == Beat(2, 0.0, "-")
    assert read_beat(tmp_path, "token2wav", 8) is None


def test_busy_times_nest_and_end(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, "m", 1)
    with heart.busy(5.0, "short"):
        with heart.busy(300.0, "compiling the kernels of 3 shapes"):
            beat = read_beat(tmp_path, "m", 1)
            assert beat is not None and (beat.busy_s, beat.reason) == (300.0, "compiling the kernels of 3 shapes")
        beat = read_beat(tmp_path, "m", 1)
        assert beat is not None and beat.busy_s == 5.0
    beat = read_beat(tmp_path, "m", 1)
    assert beat is not None and beat.busy_s == 0.0


@pytest.mark.parametrize("reason", ["x" * 1000, "", "\n", "früh"])
def test_any_reason_fits(tmp_path: Path, reason: str) -> None:
    heart = Heartbeat(tmp_path, "m", 1)
    with heart.busy(60.0, reason):
        beat = read_beat(tmp_path, "m", 1)
    assert beat is None or beat.busy_s == 60.0
    after = read_beat(tmp_path, "m", 1)
    assert after is not None and after.busy_s == 0.0


def test_a_damaged_file_is_no_beat(tmp_path: Path) -> None:
    (tmp_path / "m-1.beat").write_text("what", encoding="utf-8")
    assert read_beat(tmp_path, "m", 1) is None


def test_a_process_beats_by_itself_until_it_is_stopped(tmp_path: Path) -> None:
    heart, others = Heartbeat(tmp_path, "m", 1), set(threading.enumerate())
    heart.start()
    (thread,) = (thread for thread in set(threading.enumerate()) - others if thread.name == "bistream-heartbeat")
    while heart._count < 3:
        thread.join(0.01)
        assert thread.is_alive()
    heart.stop()
    thread.join(240.0)
    assert not thread.is_alive()


def test_a_process_without_a_keeper_may_be_busy_too() -> None:
    with busy(1.0, "loading"):
        pass


def test_a_process_that_cannot_beat_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(heartbeats, "_own", None)
    heartbeats.begin(tmp_path / "absent", "m")
    assert "not watched" in caplog.text
    heartbeats.begin(tmp_path, "m")
    with busy(9.0, "loading"):
        beat = read_beat(tmp_path, "m", os.getpid())
        assert beat is not None and beat.busy_s == 9.0
    own = heartbeats._own
    assert own is not None
    own.stop()

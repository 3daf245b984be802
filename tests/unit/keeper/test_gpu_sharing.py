"""The daemon that lets processes share a GPU: when it is started, how processes see it, and that it is gone afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bistream.keeper import gpu_sharing
from bistream.keeper.gpu_sharing import CONTROL_PROGRAM, PIPE_VARIABLE, shared_gpu
from bistream.keeper.host import ServerError

# Like NVIDIA's: with -f it stays in the foreground and has a file ``control``; without arguments it reads commands. Both leave a trace.
PROGRAM = """#!/bin/sh
if [ "$1" = -f ]; then
  echo "$$" > "$TRACE/pid"
  mkfifo "$CUDA_MPS_PIPE_DIRECTORY/control"
  read command < "$CUDA_MPS_PIPE_DIRECTORY/control"
  echo "$command" > "$TRACE/command"
else
  cat > "$CUDA_MPS_PIPE_DIRECTORY/control"
fi
"""
HAS_GPU = "pass"
HAS_NO_GPU = "raise SystemExit(1)"


@pytest.fixture(autouse=True)
def no_other_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(PIPE_VARIABLE, raising=False)
    monkeypatch.setattr(gpu_sharing, "DEFAULT_PIPES", tmp_path / "none")
    monkeypatch.setattr(gpu_sharing, "DRIVER", tmp_path)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in which the installed daemon leaves its traces."""
    program = tmp_path / "bin" / CONTROL_PROGRAM
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("TRACE", str(tmp_path))
    return tmp_path


def is_gone(trace: Path) -> bool:
    return not Path("/proc", (trace / "pid").read_text().strip()).exists()


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_the_daemon_runs_as_long_as_it_is_needed(trace: Path, mode: str) -> None:
    with shared_gpu(mode, HAS_GPU) as is_shared:
        assert is_shared
        pipes = Path(os.environ[PIPE_VARIABLE])
        assert pipes.is_dir()
        assert not is_gone(trace)
    assert (trace / "command").read_text() == "quit\n"
    assert is_gone(trace)
    assert PIPE_VARIABLE not in os.environ
    assert not pipes.exists()


def test_a_daemon_that_does_not_listen_is_killed(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "QUIT_TIMEOUT_S", 0.2)
    program = trace / "bin" / CONTROL_PROGRAM
    program.write_text(PROGRAM.replace("read command <", "sleep 60; read command <"))
    with shared_gpu("auto", HAS_GPU):
        pass
    assert is_gone(trace)


def test_without_a_gpu_that_it_can_share_there_is_no_daemon(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "READY_TIMEOUT_S", 0.1)
    with shared_gpu("auto", HAS_NO_GPU) as is_shared:
        assert not is_shared
        assert PIPE_VARIABLE not in os.environ
        assert is_gone(trace)
    with pytest.raises(ServerError, match="--mps off"), shared_gpu("on", HAS_NO_GPU):
        pass


def test_a_host_without_the_driver_is_not_mentioned(trace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(gpu_sharing, "DRIVER", trace / "none")
    with shared_gpu("auto", HAS_GPU) as is_shared:
        assert not is_shared
    assert not (trace / "pid").exists() and caplog.text == ""


def test_where_it_is_not_installed_processes_take_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    caplog.set_level("INFO")
    with shared_gpu("auto", HAS_GPU) as is_shared:
        assert not is_shared
    assert "not installed" in caplog.text
    with pytest.raises(ServerError, match="not installed"), shared_gpu("on", HAS_GPU):
        pass


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_foreign_daemon_is_used_and_left_alone(trace: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv(PIPE_VARIABLE, str(trace))
    with shared_gpu(mode, HAS_GPU) as is_shared:
        assert not is_shared and os.environ[PIPE_VARIABLE] == str(trace)
    assert not (trace / "pid").exists()

"""The server process: reasons for failure from its log, ports, leftovers, and when it counts as broken."""

from __future__ import annotations

import dataclasses
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bistream.keeper.host import ServerError, process_states, remove_abandoned_shared_memory, remove_shared_memory
from bistream.keeper.probe import ProbeSchedule
from bistream.keeper.server_process import (
    Interrupted,
    Ports,
    ServerSettings,
    TritonServer,
    backend_threads,
    free_ports,
)
from bistream.keeper.start_failure import PortInUseError, start_failure
from bistream.keeper.supervisor import Supervisor, SupervisorSettings
from scripts.fill_template import fill, placeholders
from scripts.make_model_repo import read_template

LOG = "\n".join(
    [
        'I1120 server.cc:674] "loading"',
        "E1120 model_lifecycle.cc:642] \"failed to load 'token2wav' version 1: Internal: TritonModelException: "
        'CHECKPOINT_ERROR: hift.pt is missing.\\n\\nAt:\\n  /srv/x.py(85): open\\n"',
        "E1120 model_lifecycle.cc:642] \"failed to load 'other' version 1: Not found: triton_python_backend_stub is not found.\"",
    ]
)


def fake_server(tmp_path: Path, script: str, **settings: Any) -> TritonServer:
    """A stand-in for tritonserver that gets the same arguments and never opens a port."""
    executable = tmp_path / "tritonserver"
    executable.write_text(f"#!{sys.executable}\n{script}\n", encoding="utf-8")
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    return TritonServer(ServerSettings(tmp_path, executable, tmp_path, log_path=tmp_path / "log", **settings))


def test_every_model_that_refused_is_named_with_its_reason() -> None:
    message = str(start_failure(LOG, 1))
    assert message.splitlines() == [
        "Model token2wav refused to load: CHECKPOINT_ERROR: hift.pt is missing.",
        "Model other refused to load: triton_python_backend_stub is not found.",
    ]


def test_a_port_in_use_is_its_own_error() -> None:
    failure = start_failure("failed to start GRPC service: Unavailable - Socket '127.0.0.1:8001' already in use", 1)
    assert isinstance(failure, PortInUseError)


def test_an_unexplained_exit_shows_the_log() -> None:
    assert "exit code -11" in str(start_failure("Signal (11) received.", -11)) and "Signal (11)" in str(start_failure("Signal (11)", -11))


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports()
    numbers = {ports.http, ports.grpc, ports.metrics}
    assert len(numbers) == 3
    for number in numbers:
        with socket.socket() as one:
            one.bind(("127.0.0.1", number))


@pytest.mark.parametrize("position", range(3))
def test_a_port_in_use_is_named_before_the_start(tmp_path: Path, position: int) -> None:
    """Otherwise the other program's readiness would be taken for ours."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        ports = list(dataclasses.astuple(free_ports()))
        ports[position] = taken
        server = fake_server(tmp_path, "import sys; sys.exit(3)", ports=Ports(*ports))
        with pytest.raises(PortInUseError, match=str(taken)):
            server.start()
    with pytest.raises(ServerError, match="exit code 3"):  # free again
        server.start()


def test_a_server_whose_log_cannot_be_written_goes_on(tmp_path: Path) -> None:
    """If copying the log stopped at a full disk, the server would block forever at its next line."""
    script = "import sys; print('x' * 1_000_000, flush=True); print('still here', flush=True); sys.exit(3)"
    server = fake_server(tmp_path, script)
    server.settings = dataclasses.replace(server.settings, log_path=Path("/dev/full"), start_timeout_s=20.0)
    with pytest.raises(ServerError, match="exit code 3"):
        server.start()
    assert "still here" in server.log_tail()


def test_a_log_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    server = fake_server(tmp_path, "")
    server.settings = dataclasses.replace(server.settings, log_path=tmp_path)
    with pytest.raises(ServerError, match="cannot be written"):
        server.start()


@pytest.mark.parametrize("sessions", [{}, {"a": 64, "b": 10}, {"a": 3}])
def test_every_session_may_wait_for_two_answers_at_a_time(tmp_path: Path, sessions: dict[str, int]) -> None:
    for model, count in sessions.items():
        (tmp_path / model).mkdir()
        template = read_template("cosyvoice2_bistream")
        values = {name: "1" for name in placeholders(template)}
        text = fill(template, {**values, "max_sessions": str(count)})
        (tmp_path / model / "config.pbtxt").write_text(text, encoding="utf-8")
    assert backend_threads(tmp_path) > 2 * max(sessions.values(), default=0)


def test_a_server_that_ends_while_starting_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    server = fake_server(tmp_path, f"import sys; print({LOG!r}); sys.exit(1)")
    with pytest.raises(ServerError, match="hift.pt is missing"):
        server.start()
    assert server.exit_code() == 1
    assert "hift.pt" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_server_that_hangs_while_starting_is_killed_with_its_children(tmp_path: Path) -> None:
    """A model process that cannot start makes the real server wait forever; this one also ignores SIGTERM."""
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    server = fake_server(tmp_path, script, start_timeout_s=1.0)
    with pytest.raises(ServerError, match="not ready after 1 s"):
        server.start()
    child = int((tmp_path / "log").read_text(encoding="utf-8").split()[1])
    assert server.exit_code() is not None
    assert not Path(f"/proc/{child}").exists() or (Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z")


def test_starting_can_be_interrupted(tmp_path: Path) -> None:
    server = fake_server(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(Interrupted):
        server.start(should_stop=lambda: True)
    assert server.exit_code() is not None


def test_stop_is_idempotent_and_needs_no_start(tmp_path: Path) -> None:
    server = fake_server(tmp_path, "")
    server.stop()
    server.stop()
    with pytest.raises(ServerError, match="exit code 0"):
        server.start()
    server.stop()


def test_a_supervisor_gives_up_on_a_server_that_does_not_start(tmp_path: Path) -> None:
    settings = fake_server(tmp_path, "import sys; sys.exit(3)").settings
    with pytest.raises(ServerError, match="exit code 3"):
        Supervisor(settings, SupervisorSettings()).run()


def test_a_supervisor_can_be_stopped_while_the_server_starts(tmp_path: Path) -> None:
    supervisor = Supervisor(fake_server(tmp_path, "import time; time.sleep(600)").settings, SupervisorSettings())
    timer = threading.Timer(0.2, supervisor.stop)
    timer.start()
    with pytest.raises(Interrupted):
        supervisor.run()
    timer.join()


def test_only_files_of_dead_keepers_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    mine, dead, other = (tmp_path / name for name in (f"bistream_{os.getpid()}_x_1", f"bistream_{process.pid}_x_1", "someone_else"))
    for path in (mine, dead, other):
        path.touch()
    remove_abandoned_shared_memory(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, other])
    remove_shared_memory(f"bistream_{os.getpid()}_x_", tmp_path)
    assert list(tmp_path.iterdir()) == [other]


def test_process_states_see_a_dead_child() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, but has not been reaped
        assert (os.getpid(), "Z") in process_states()


def test_probes_are_due_after_the_interval_and_one_failure_is_forgiven() -> None:
    now = [0.0]
    schedule = ProbeSchedule(interval_s=10.0, failures_allowed=1, clock=lambda: now[0])
    assert not schedule.is_due()
    now[0] = 10.0
    assert schedule.is_due()
    assert not schedule.record(False) and not schedule.is_due()
    assert not schedule.record(True)
    assert not schedule.record(False)
    assert schedule.record(False)
    assert not ProbeSchedule(interval_s=0.0, clock=lambda: 1e9).is_due()


class Rehearsal(Supervisor):
    """Servers that never run: ``lives`` holds the lifetime of each (hours; None: it does not start)."""

    def __init__(self, tmp_path: Path, lives: list[float | None]) -> None:
        self.now = 0.0
        self.lives = lives
        settings = fake_server(tmp_path, "").settings
        super().__init__(settings, SupervisorSettings(max_restarts=3, stable_after_s=600.0), clock=lambda: self.now)

    def _start(self) -> TritonServer:
        if not self.lives:
            raise Interrupted
        if self.lives[0] is None:
            self.lives.pop(0)
            raise ServerError("It does not start.")
        return TritonServer(self._server_settings)

    def _watch(self, server: TritonServer) -> str | None:
        life = self.lives.pop(0)
        assert life is not None
        self.now += 3600.0 * life
        return "It has died"


@pytest.mark.parametrize("lives", [[1.0] * 20, [1.0, None, None, 1.0, None, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
def test_a_server_that_dies_now_and_then_is_always_restarted(tmp_path: Path, lives: list[float | None]) -> None:
    rehearsal = Rehearsal(tmp_path, lives)
    with pytest.raises(Interrupted):
        rehearsal.run()
    assert rehearsal.lives == []


@pytest.mark.parametrize("lives", [[0.0] * 4, [1.0, None, None, None], [1.0, None, 0.0, None]])
def test_a_server_that_dies_again_and_again_is_given_up(tmp_path: Path, lives: list[float | None]) -> None:
    rehearsal = Rehearsal(tmp_path, [*lives, 1.0])
    with pytest.raises(ServerError, match="giving up after 3 restarts"):
        rehearsal.run()
    assert rehearsal.lives == [1.0]

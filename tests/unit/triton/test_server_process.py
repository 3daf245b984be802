"""Around the server: reasons from its log, ports, leftovers, and when it counts as broken."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bistream.triton.host import ServerError, process_states, remove_abandoned_shared_memory, remove_shared_memory
from bistream.triton.probe import ProbeSchedule
from bistream.triton.server_process import Interrupted, PortInUseError, ServerSettings, TritonServer, free_ports, start_failure
from bistream.triton.supervisor import Supervisor, SupervisorSettings

LOG = "\n".join(
    [
        'I1120 server.cc:674] "loading"',
        "E1120 model_lifecycle.cc:642] \"failed to load 'token2wav' version 1: Internal: TritonModelException: "
        'CHECKPOINT_ERROR: hift.pt is missing.\\n\\nAt:\\n  /srv/x.py(85): open\\n"',
        "E1120 model_lifecycle.cc:642] \"failed to load 'other' version 1: Not found: triton_python_backend_stub is not found.\"",
    ]
)


def fake_server(tmp_path: Path, script: str, **settings: float) -> TritonServer:
    """A program of our own in place of tritonserver: it gets the same arguments and never opens a port."""
    executable = tmp_path / "tritonserver"
    executable.write_text(f"#!{sys.executable}\n{script}\n", encoding="utf-8")
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    return TritonServer(ServerSettings(tmp_path, executable, tmp_path, log_path=tmp_path / "log", **settings))  # type: ignore[arg-type]


def test_every_model_that_refused_is_named_with_its_reason() -> None:
    message = str(start_failure(LOG, 1))
    assert message.splitlines() == [
        "Model token2wav refused to load: CHECKPOINT_ERROR: hift.pt is missing.",
        "Model other refused to load: triton_python_backend_stub is not found.",
    ]


def test_a_port_in_use_is_its_own_error() -> None:
    failure = start_failure("failed to start GRPC service: Unavailable - Socket '127.0.0.1:8001' already in use", 1)
    assert isinstance(failure, PortInUseError)


def test_an_unknown_end_shows_the_log() -> None:
    assert "exit code -11" in str(start_failure("Signal (11) received.", -11)) and "Signal (11)" in str(start_failure("Signal (11)", -11))


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports()
    numbers = {ports.http, ports.grpc, ports.metrics}
    assert len(numbers) == 3
    for number in numbers:
        with socket.socket() as one:
            one.bind(("127.0.0.1", number))


def test_a_server_that_ends_while_starting_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    server = fake_server(tmp_path, f"import sys; print({LOG!r}); sys.exit(1)")
    with pytest.raises(ServerError, match="hift.pt is missing"):
        server.start()
    assert server.exit_code() == 1
    assert "hift.pt" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_server_that_hangs_while_starting_is_killed_with_its_children(tmp_path: Path) -> None:
    """A model process that cannot start makes the real server wait for ever; this one ignores SIGTERM too."""
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
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, nobody has asked for its code yet
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

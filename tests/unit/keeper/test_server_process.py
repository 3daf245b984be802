"""The server process: reasons for failure from its log, ports, leftovers, and when it counts as broken."""

from __future__ import annotations

import dataclasses
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bistream.keeper import host
from bistream.keeper.host import ServerError, free_ports
from bistream.keeper.served_models import process_state
from bistream.keeper.server_log import start_failure
from bistream.keeper.server_process import Interrupted, Ports, ServerSettings, TritonServer
from bistream.keeper.supervisor import Supervisor, SupervisorSettings
from tests.ports import ports
from tests.triton.conftest import wait_for

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
    numbers = {"ports": Ports(*ports(3))}
    return TritonServer(ServerSettings(tmp_path, executable, tmp_path, log_path=tmp_path / "log", **{**numbers, **settings}))


def test_every_model_that_refused_is_named_with_its_reason() -> None:
    message = str(start_failure(LOG, 1))
    assert message.splitlines() == [
        "Model token2wav refused to load: CHECKPOINT_ERROR: hift.pt is missing.",
        "Model other refused to load: triton_python_backend_stub is not found.",
    ]


def test_an_unexplained_exit_shows_the_log() -> None:
    assert "exit code -11" in str(start_failure("Signal (11) received.", -11)) and "Signal (11)" in str(start_failure("Signal (11)", -11))


@pytest.mark.parametrize(("first_of_system", "highest"), [(20_000, 20_000), (1024, 60_000)])
def test_free_ports_are_free_and_where_possible_outside_the_systems_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_of_system: int, highest: int
) -> None:
    (tmp_path / "range").write_text(f"{first_of_system}\t65535\n", encoding="ascii")
    monkeypatch.setattr(host, "_EPHEMERAL", tmp_path / "range")
    for number in free_ports(3):
        assert 10_000 <= number < highest
        with socket.create_server(("127.0.0.1", number)):
            pass


def test_free_ports_leave_out_what_is_wanted_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("10101\t65535\n", encoding="ascii")
    monkeypatch.setattr(host, "_EPHEMERAL", tmp_path / "range")
    for _ in range(20):
        assert set(free_ports(2, range(10_010, 10_101))) <= set(range(10_000, 10_010))


@pytest.mark.parametrize("position", range(3))
def test_a_port_in_use_is_named_before_the_start(tmp_path: Path, position: int) -> None:
    """Otherwise the other program's readiness would be taken for ours."""
    server = fake_server(tmp_path, "import sys; sys.exit(3)")
    taken = dataclasses.astuple(server.ports)[position]
    with socket.socket() as other:
        other.bind(("127.0.0.1", taken))
        other.listen()
        with pytest.raises(ServerError, match=str(taken)):
            server.start()
    with pytest.raises(ServerError, match="exit code 3"):  # free again
        server.start()


def test_a_server_whose_log_cannot_be_written_goes_on(tmp_path: Path) -> None:
    """If copying the log stopped at a full disk, the server would block forever at its next line."""
    script = "import sys; print('x' * 1_000_000, flush=True); print('still here', flush=True); sys.exit(3)"
    seen: list[str] = []
    server = fake_server(tmp_path, script, on_log_line=seen.append)
    server.settings = dataclasses.replace(server.settings, log_path=Path("/dev/full"), start_timeout_s=600.0)
    with pytest.raises(ServerError, match="exit code 3"):
        server.start()
    assert "still here" in server.log_tail() and seen[-1] == "still here\n"


def test_a_server_that_ends_while_starting_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    server = fake_server(tmp_path, f"import sys; print({LOG!r}); sys.exit(1)")
    with pytest.raises(ServerError, match="hift.pt is missing"):
        server.start()
    assert server.exit_code() == 1
    assert "hift.pt" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_server_that_hangs_while_starting_is_killed_with_its_children(tmp_path: Path) -> None:
    """A model process that cannot start makes the real server wait forever; this one also ignores SIGTERM. Its time is over once it has
    a child, however soon it has one."""
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    server, at_the_start = fake_server(tmp_path, script, start_timeout_s=500.0), iter([0.0])
    with pytest.raises(ServerError, match="not ready after 500 s"):
        server.start(clock=lambda: next(at_the_start, 1000.0 if "child" in server.log_tail() else 0.0))
    child = int((tmp_path / "log").read_text(encoding="utf-8").split()[1])
    assert server.exit_code() is not None
    wait_for(lambda: process_state(child) in (None, "Z"), "the end of its child")


def test_stop_is_idempotent_and_needs_no_start(tmp_path: Path) -> None:
    server = fake_server(tmp_path, "")
    server.stop()
    server.stop()
    with pytest.raises(ServerError, match="exit code 0"):
        server.start()
    server.stop()


def test_a_supervisor_can_be_stopped_while_the_server_starts(tmp_path: Path) -> None:
    """It is stopped when the server has said something."""
    stop: list[Callable[[], None]] = []
    script = "import time; print('loading', flush=True); time.sleep(600)"
    server = fake_server(tmp_path, script, on_log_line=lambda line: stop[0]())
    supervisor = Supervisor(server.settings, SupervisorSettings())
    stop.append(supervisor.stop)
    with pytest.raises(Interrupted):
        supervisor.run()

"""``scripts/serve_all.py``: its command line, and its processes, which stand-ins replace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.serve_all import member, parse_arguments

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0
# Says its name and process, is ready until the first signal, and says then that it drains.
STAND_IN = """
import os, pathlib, signal, sys
name, arguments = sys.argv[1], sys.argv[2:]
ready = pathlib.Path(arguments[arguments.index("--ready-file") + 1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
ready.touch()
print(f"<{name} is {os.getpid()}>", flush=True)
signal.sigwait([signal.SIGTERM])
print(f"<{name} drains>", flush=True)
ready.unlink()
"""
PROGRAM = """
import sys
from scripts import serve_all
code = sys.argv.pop(1)
serve_all.SERVER, serve_all.INTERFACES = ((sys.executable, "-c", code, name) for name in ("server", "interfaces"))
sys.exit(serve_all.main())
"""


class Running:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, STAND_IN, *arguments], cwd=ROOT, stderr=log)

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def pids(self, name: str) -> list[int]:
        return [int(pid) for pid in re.findall(rf"<{name} is (\d+)>", self.said)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def wait_starts(self, server: int, interfaces: int) -> None:
        self.wait_for(lambda: (len(self.pids("server")), len(self.pids("interfaces"))) == (server, interfaces))


def test_the_death_of_one_starts_it_again_alone_and_the_end_has_an_order(tmp_path: Path) -> None:
    running = Running(tmp_path, "--grpc-port", "1", "--interfaces", "--port", "2")
    try:
        running.wait_starts(1, 1)
        os.kill(running.pids("interfaces")[-1], signal.SIGKILL)
        running.wait_starts(1, 2)
        os.kill(running.pids("server")[-1], signal.SIGKILL)
        running.wait_starts(2, 2)
        running.process.terminate()
        assert running.process.wait(TIMEOUT_S) == 0
    finally:
        running.process.kill()
        running.process.wait()
    assert running.said.index("<interfaces drains>") < running.said.index("<server drains>")


def test_certificate_and_keys_hold_for_both(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--tls-certificate", "door.pem", "--tls-key=door.key", "--keys-file", "keys", "--interfaces", "--keys-file=own", "--server=a:1",
    ]  # fmt: skip
    monkeypatch.delenv("BISTREAM_API_KEY", raising=False)
    with pytest.raises(SystemExit):
        parse_arguments(words)
    assert "set BISTREAM_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("BISTREAM_API_KEY", "0123456789abcdef")
    assert parse_arguments(words)[1] == [
        "--tls-certificate=door.pem",
        "--tls-key=door.key",
        "--server-tls",
        "--keys-file=own",
        "--server=a:1",
    ]


@pytest.mark.parametrize(
    ("words", "server"),
    [
        ([], "localhost:8001"),
        (["--grpc-address", "0.0.0.0", "--grpc-port=7001"], "localhost:7001"),
        (["--grpc-address", "10.0.0.5"], "10.0.0.5:8001"),
        (["--grpc-address=fd00::5"], "[fd00::5]:8001"),
    ],
)
def test_the_interfaces_find_the_server_where_it_listens(words: list[str], server: str) -> None:
    assert parse_arguments([*words, "--interfaces"])[1] == [f"--server={server}"]


@pytest.mark.parametrize("given", [True, False])
def test_readiness_is_the_ready_file_that_was_given_or_its_own(given: bool, tmp_path: Path) -> None:
    ready_file = tmp_path / ("given" if given else "server")
    plan = member("server", ["program"], ["--ready-file", str(ready_file)] if given else ["--tls"], tmp_path).plan
    assert list(plan.command[:3]) == ["program", "--ready-file", str(ready_file)] and not plan.is_ready()
    ready_file.touch()
    assert plan.is_ready()

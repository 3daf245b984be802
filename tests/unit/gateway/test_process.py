"""``python -m gateway`` as a process: its start, its drain, its refusals to start."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
import tritonclient.grpc as triton

from bistream.client.client import BistreamClient
from bistream.errors import BistreamError
from gateway import process
from gateway.gate import Gate
from gateway.options import command, parse_arguments
from gateway.settings import GateLimits, GateSettings, Listen, TlsSettings, UpstreamSettings
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.rig import TIMEOUT_S, FakeTriton

ROOT = Path(__file__).resolve().parents[3]


class Process:
    """A context: a gate that is open."""

    def __init__(self, folder: Path, server: FakeTriton, address: str = "127.0.0.1", **options: Any) -> None:
        self._ready = folder / "ready.json"
        upstream = UpstreamSettings(server.address, poll_interval_s=0.05)
        settings = GateSettings(upstream, grpc=Listen(address, 0), http=Listen(port=0), ready_file=self._ready, **options)
        self._command = command(settings)

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        try:
            self._await_ready()
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise
        return self

    def _await_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not (self._ready.exists() and json.loads(self._ready.read_text(encoding="utf-8"))["ready"]):
            assert self.process.poll() is None and time.monotonic() < deadline, "the gate did not open"
            time.sleep(0.01)
        addresses = json.loads(self._ready.read_text(encoding="utf-8"))
        self.grpc_url, self.http_url = addresses["grpc"], addresses["http"]
        self.client = self.connect()

    def await_heartbeat(self) -> None:
        """The ready file is touched as long as the gate's loop turns."""
        before, deadline = self._ready.stat().st_mtime_ns, time.monotonic() + TIMEOUT_S
        while self._ready.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def connect(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.grpc_url)

    def wait_for_readiness(self, wanted: bool) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.client.is_server_ready() is not wanted:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def check_end(self, words: str) -> str:
        """Returns all that it has said."""
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 0 and words in errors and "Traceback" not in errors, errors
        assert not self._ready.exists()
        return str(errors)

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate()


WARNING = "open to other machines"


def test_a_signal_drains_and_a_session_ends_in_peace(tmp_path: Path) -> None:
    server = FakeTriton(Speakers())
    with Process(tmp_path, server, address="0.0.0.0") as gate, BistreamClient(gate.grpc_url).start(speaker_id="anna", text="x") as session:
        next(iter(session))
        gate.await_heartbeat()
        gate.process.send_signal(signal.SIGTERM)
        gate.wait_for_readiness(False)
        with BistreamClient(gate.grpc_url).start(speaker_id="anna", text="x") as late, pytest.raises(BistreamError) as refused:
            list(late)
        assert refused.value.code == "SHUTTING_DOWN"
        session.end_text("y")
        assert len(list(session)) == 1
        session.close()
        assert WARNING in gate.check_end("draining: 1 sessions")
    server.stop()


def test_a_second_signal_ends_all_and_tells_the_sessions(tmp_path: Path) -> None:
    server = FakeTriton(Speakers())
    gate = Process(tmp_path, server, address="0.0.0.0", behind_proxy=True)
    with gate, BistreamClient(gate.grpc_url).start(speaker_id="anna", text="x") as session:
        next(iter(session))
        gate.process.send_signal(signal.SIGTERM)
        gate.wait_for_readiness(False)
        gate.process.send_signal(signal.SIGTERM)
        with pytest.raises((BistreamError, ConnectionError)):
            list(session)
        assert WARNING not in gate.check_end("1 sessions had not ended"), "behind a proxy it is meant so"
    server.stop()


async def test_a_full_disk_does_not_silence_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper kills a gate whose ready file is never touched."""
    tries, ready = [], tmp_path / "ready.json"
    ready.write_text("{}", encoding="utf-8")

    def no_room(path: Path, *parts: bytes) -> None:
        tries.append(ready.stat().st_mtime_ns)
        os.utime(ready, ns=(0, 0))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(process, "write_whole", no_room)
    monkeypatch.setattr(process, "HEARTBEAT_S", 0.0)
    report = asyncio.create_task(process._report(cast(Gate, SimpleNamespace(is_ready=True)), ready, {}))
    while len(tries) < 3:
        await asyncio.sleep(0)
    report.cancel()
    assert min(tries) > 0


def test_what_is_wrong_at_the_start_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "--keys-file", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "cannot be read" in done.stderr.splitlines()[-1]


def test_the_command_of_settings_gives_the_settings_back() -> None:
    settings = GateSettings(
        UpstreamSettings("127.0.0.1:9"),
        GateLimits(max_text_bytes=7, starts_per_second=1.5),
        Listen("0.0.0.0", 5),
        Listen("127.0.0.2", 6),
        TlsSettings(Path("c"), Path("k"), Path("a")),
        Path("keys"),
        3.0,
        Path("ready"),
        True,
    )
    assert parse_arguments(command(settings)[3:]) == settings
    assert parse_arguments(command(GateSettings())[3:]) == GateSettings()


@pytest.mark.parametrize(
    "wrong",
    [
        ["--tls-key", "x"],
        ["--tls-client-ca", "x"],
        ["--max-sessions", "-1"],
        ["--max-sessions", "x"],
        ["--grpc-port", "70000"],  # gRPC itself would take it as 4464
        ["--nonsense"],
    ],
)
def test_wrong_usage_is_exit_code_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(wrong)
    assert ended.value.code == 2 and wrong[0] in capsys.readouterr().err

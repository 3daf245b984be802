"""``python -m gateway`` in front of a real server, for the tests of the gate."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType

import tritonclient.grpc as triton

from bistream.keeper.server_process import TritonServer
from gateway.options import command
from gateway.settings import GateLimits, GateSettings, Listen, UpstreamSettings
from tests.triton.conftest import ROOT, WAIT_TIMEOUT_S, wait_for


class GateProcess:
    """A context: a gate that lets sessions through. stderr goes to ``log``."""

    def __init__(self, server: TritonServer, folder: Path, limits: GateLimits | None = None) -> None:
        self._ready = folder / "gate.json"
        self.log = folder / "gate.log"
        self._settings = GateSettings(
            UpstreamSettings(server.grpc_url), limits or GateLimits(), Listen(port=0), Listen(port=0), ready_file=self._ready
        )
        self.grpc_url = self.http_url = ""

    def __enter__(self) -> GateProcess:
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command(self._settings), cwd=ROOT, stderr=log)
        try:
            wait_for(lambda: self._ready.exists() and self._ready.read_text(encoding="utf-8") != "", "the gate's start")
            addresses = json.loads(self._ready.read_text(encoding="utf-8"))
            self.grpc_url, self.http_url = addresses["grpc"], addresses["http"]
            client = triton.InferenceServerClient(self.grpc_url)
            wait_for(client.is_server_ready, "the gate's readiness")
            client.close()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def check_end(self) -> None:
        """SIGTERM ends it with code 0, and it has logged no failure of its own."""
        self.process.terminate()
        assert self.process.wait(WAIT_TIMEOUT_S) == 0
        assert "Traceback" not in self.log.read_text(encoding="utf-8")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()

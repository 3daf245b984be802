"""One process of the gate (``python -m gateway``): its start, whether it answers, its end. ``gate`` keeps it running.

The keeper knows the gate by its command line, its ready file, its health path and its exit code; it imports the gate's settings only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bistream.keeper.child import OutputCopy, spawn
from bistream.keeper.hang_watch import Vitals
from bistream.keeper.health import READY
from bistream.keeper.host import ServerError, reachable
from bistream.keeper.model_processes import RUNNABLE, STOPPED, process_state, processor_s
from bistream.keeper.server_process import Interrupted, never
from gateway.options import command
from gateway.settings import GateSettings, Listen

ROOT = Path(__file__).resolve().parents[2]  # holds the packages bistream and gateway
START_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
LINES_SHOWN = 20
_SENTENCE = re.compile(r"^gateway: (.*)$", re.MULTILINE)
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE)


class GateProcess:
    """``start`` once, ``kill`` at the end. Must be started from a thread that lives as long as the process.

    settings: with an HTTP door. Ports of 0 are replaced by the ones that the gate has chosen, for a successor to take over.
    """

    def __init__(self, settings: GateSettings) -> None:
        assert settings.http is not None
        self.settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="bistream-gate-")
        self._output: OutputCopy | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, should_stop: Callable[[], bool] = never) -> None:
        """Returns when the doors are open. Raises ``ServerError`` with the gate's sentence, or ``Interrupted``; nothing runs then."""
        try:
            self._process = spawn(command(replace(self.settings, ready_file=self._ready_file)), cwd=ROOT)
            self._output = OutputCopy(self._process, is_quiet=True)  # kept for the reason of a failed start
            addresses = self._await_doors(self._output, should_stop)
        except BaseException:
            self.kill()
            raise
        self.settings = _with_ports(self.settings, addresses)
        self._output.is_quiet = False

    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def vitals(self) -> Vitals:
        """Its heartbeat is the time of its ready file, which it renews (``gateway/__main__.py``)."""
        try:
            beat = self._ready_file.stat().st_mtime_ns
        except OSError:  # it has begun to end, or somebody has cleaned up
            beat = 0
        return Vitals(beat, processor_s(self.pid), process_state(self.pid) in (*STOPPED, RUNNABLE))

    def ask_to_end(self) -> None:
        """The first time it drains, the second time it ends at once."""
        assert self._process is not None
        for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process would not hear the first one alone
            self._process.send_signal(number)  # of no effect on a process that has ended

    def kill(self) -> None:
        """Idempotent. Its clients' connections are reset."""
        self._folder.cleanup()
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        if self._output is not None:
            self._output.join()

    @property
    def _ready_file(self) -> Path:
        return Path(self._folder.name) / "ready.json"

    def _await_doors(self, output: OutputCopy, should_stop: Callable[[], bool]) -> dict[str, str]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError, ValueError):  # not there yet, or not complete
                addresses: dict[str, str] = json.loads(self._ready_file.read_text(encoding="utf-8"))
                return addresses
            if self.exit_code() is not None:
                output.join()
                raise ServerError(failure_sentence(output.tail(LINES_SHOWN), self.exit_code()))
            if should_stop():
                raise Interrupted
            if time.monotonic() > deadline:
                raise ServerError(f"The gate was not open after {START_TIMEOUT_S:.0f} s; its log ends with:\n{output.tail(LINES_SHOWN)}")
            time.sleep(POLL_INTERVAL_S)


def failure_sentence(log: str, exit_code: int | None) -> str:
    """Why a gate did not start."""
    if sentences := _SENTENCE.findall(log):
        return f"The gate cannot start: {sentences[-1]}"
    if missing := _MISSING.findall(log):
        return (
            f"The gate needs the Python package {missing[-1]}; run: bash run.sh setup, "
            f"or: {sys.executable} -m pip install -r requirements/gateway.txt (--direct serves without a gate)."
        )
    return f"The gate ended with exit code {exit_code} while starting; its log ends with:\n{log}"


def _with_ports(settings: GateSettings, addresses: dict[str, str]) -> GateSettings:
    """The ports that it has in place of 0."""
    assert settings.http is not None
    grpc, http = (int(addresses[door].rpartition(":")[2]) for door in ("grpc", "http"))
    return replace(settings, grpc=Listen(settings.grpc.address, grpc), http=Listen(settings.http.address, http))


def ask_ready(settings: GateSettings, timeout_s: float) -> bool | None:
    """Whether the gate takes sessions; ``None`` where it answers without saying so. Raises ``TimeoutError`` when it does not answer.

    A closed connection is an answer too (its addresses may have as many as they are allowed), and so is the refusal of a handshake
    without a certificate. Nothing is sent but a question, so the gate's certificate is not checked.
    """
    assert settings.http is not None
    address = reachable(settings.http.address)
    if settings.tls is None:
        connection = http.client.HTTPConnection(address, settings.http.port, timeout=timeout_s)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, settings.http.port, timeout=timeout_s, context=context)
    with contextlib.closing(connection):
        try:
            connection.request("GET", READY)
            return connection.getresponse().status == http.client.OK
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            return None

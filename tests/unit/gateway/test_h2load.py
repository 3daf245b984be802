"""nghttp2's h2load before the gRPC door: thousands of calls from a few connections, with callers beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.settings import GateLimits
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.company import Company
from tests.unit.gateway.marks import long
from tests.unit.gateway.requests import message
from tests.unit.gateway.rig import TIMEOUT_S, FakeTriton, GateRig
from tests.unit.gateway.test_process import Process

pytestmark = pytest.mark.skipif(shutil.which("h2load") is None, reason="there is no h2load; install Debian's package nghttp2-client")
MANY, LONG_S = 100, 15
Load = Callable[..., int]
SERVICE = "/inference.GRPCInferenceService"
STREAM, LIVE = f"{SERVICE}/ModelStreamInfer", f"{SERVICE}/ServerLive"
START = message(request_id="start", target_text="x", session_id="a", is_start=True, is_end=False)
END = message(request_id="end", target_text="y", session_id="a", is_start=False, is_end=True)
CANCEL = message(request_id="cancel", session_id="a", is_cancel=True)


def framed(*messages: Any) -> bytes:
    """As gRPC sends messages: not compressed, length, contents."""
    contents = [made.SerializeToString() for made in messages]
    return b"".join(b"\0" + len(content).to_bytes(4, "big") + content for content in contents)


QUESTION = framed(service_pb2.ServerLiveRequest())


def h2load(address: str, path: str, body: bytes, folder: Path, *options: Any) -> int:
    """Answered calls, all of which must have been answered where their number is given."""
    (folder / "body").write_bytes(body)
    words = ["h2load", *map(str, options), "-d", str(folder / "body"), "-H", "content-type: application/grpc", "-H", "te: trailers"]
    done = subprocess.run([*words, f"http://{address}{path}"], capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (counts,) = re.findall(r"(\d+) total, \d+ started, \d+ done, (\d+) succeeded, (\d+) failed, (\d+) errored", done.stdout)
    total, succeeded, failed, errored = map(int, counts)
    assert succeeded > 0 and failed == errored == 0 and ("-n" not in options or succeeded == total), done.stdout
    return succeeded


@pytest.fixture(scope="module")
def rig() -> Iterator[GateRig]:
    with GateRig(Speakers(), GateLimits(starts_per_second=0.0)) as made:
        yield made


@pytest.fixture
def load(rig: GateRig, tmp_path: Path) -> Iterator[Load]:
    """(path, body, options) of h2load; afterwards nothing of its calls is left."""
    yield lambda path, body, *options: h2load(rig.grpc_url, path, body, tmp_path, *options)
    rig.wait_for(lambda: rig.gate.admission.calls == rig.gate.admission.sessions == 0)


@pytest.mark.parametrize("last", [END, CANCEL])
def test_a_hundred_sessions_at_a_time_of_one_connection(rig: GateRig, load: Load, last: Any) -> None:
    """Of two pieces each, or cancelled after the first one."""
    before = rig.gate.metrics.sessions
    load(STREAM, framed(START, last), "-n", 2 * MANY, "-c", 1, "-m", MANY)
    assert rig.gate.metrics.sessions == before + 2 * MANY


def test_deadlines(rig: GateRig, load: Load) -> None:
    """Of sessions that would go on."""
    load(STREAM, framed(START), "-n", MANY, "-c", 1, "-m", MANY, "-H", "grpc-timeout: 300m")


@pytest.mark.parametrize("refused", [f"{SERVICE}/Nothing", f"{SERVICE}/ModelMetadata"])
def test_refused_calls_leave_the_connection(rig: GateRig, load: Load, refused: str) -> None:
    """h2load counts calls on a connection that it opens once."""
    load(refused, framed(service_pb2.ModelMetadataRequest(name="nope")), "-n", 500, "-c", 1, "-m", 10)
    load(LIVE, QUESTION, "-n", 500, "-c", 1, "-m", 10)


def flood(folder: Path, *amount: Any, rounds: int = 1) -> None:
    """Questions that need no key, from 16 connections with 128 at a time."""
    server = FakeTriton(Speakers())
    with Process(folder, server) as gate:
        for _ in range(rounds):
            with Company(gate.grpc_url, gate.process.pid, "h2load"):
                h2load(gate.grpc_url, LIVE, QUESTION, folder, *amount, "-c", 16, "-m", 128)
    server.stop()


def test_a_flood_of_questions(tmp_path: Path) -> None:
    flood(tmp_path, "-n", 4000)


@long
@pytest.mark.parametrize("amount", [("-D", LONG_S), ("-n", 8000)])
def test_long_floods_of_questions(tmp_path: Path, amount: tuple[Any, ...]) -> None:
    flood(tmp_path, *amount, rounds=2)

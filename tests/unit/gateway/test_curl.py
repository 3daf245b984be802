"""curl before the gRPC door, plain and TLS: gRPC as bodies of frames over its HTTP/2 library, nghttp2."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2

from gateway.settings import TlsSettings
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.requests import message
from tests.unit.gateway.rig import TIMEOUT_S, GateRig, certificate

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl; install Debian's package curl")
SERVICE, HEALTH = "/inference.GRPCInferenceService", "/grpc.health.v1.Health"
OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, UNIMPLEMENTED = "0", "3", "4", "5", "12"
MANY = 100


class Curl:
    """Calls of programs of curl. folder: for its files."""

    def __init__(self, rig: GateRig, tls: TlsSettings | None, folder: Path) -> None:
        self.rig = rig
        self.is_plain = tls is None
        self._folder = folder
        self._base = f"{'http' if tls is None else 'https'}://{rig.grpc_url}"
        self._options = ["--http2-prior-knowledge"] if tls is None else ["--http2", "--cacert", str(tls.certificate)]

    def command(self, paths: list[str], body: bytes, *options: str) -> list[str]:
        """Every path is called with the same body; what comes goes to files with the number of the path."""
        (self._folder / "body").write_bytes(body)
        words = ["curl", "--silent", "--show-error", "--max-time", str(TIMEOUT_S), *self._options, *options]
        words += ["--header", "content-type: application/grpc", "--header", "te: trailers", "--data-binary", f"@{self._folder / 'body'}"]
        words += ["--write-out", "%{num_connects} %{http_version} %header{grpc-status}\n"]
        for number, path in enumerate(paths):
            words += ["--output", str(self._folder / str(number)), f"{self._base}{path}"]
        return words

    def ask(self, paths: list[str], body: bytes, *options: str) -> list[tuple[str, list[bytes]]]:
        """(status, messages) of each call, in the order in which they end; all of them on one connection."""
        files = [self._folder / str(number) for number in range(len(paths))]
        for file in files:
            file.unlink(missing_ok=True)
        done = subprocess.run(self.command(paths, body, *options), capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        lines = [line.split(" ") for line in done.stdout.splitlines()]
        assert sum(int(connects) for connects, _, _ in lines) == 1 and {version for _, version, status in lines if status} == {"2"}, lines
        answers = [unframed(file.read_bytes()) if file.exists() else [] for file in files]
        return [(status, messages) for (_, _, status), messages in zip(lines, answers, strict=True)]

    def one(self, method: str, body: bytes, *options: str) -> tuple[str, list[bytes]]:
        return self.ask([method], body, *options)[0]


def needs_reuse(curl: Curl) -> None:
    """Skips the test where curl cannot use a connection again without TLS (https://github.com/curl/curl/issues/10634)."""
    version = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    if curl.is_plain and int(version.partition(".")[0]) < 8:
        pytest.skip(f"curl {version} cannot use a connection without TLS twice; install version 8 or newer")


def framed(*messages: Any) -> bytes:
    """As gRPC sends messages: not compressed, length, contents."""
    contents = [made.SerializeToString() for made in messages]
    return b"".join(b"\0" + len(content).to_bytes(4, "big") + content for content in contents)


def unframed(data: bytes) -> list[bytes]:
    contents = []
    while data:
        end = 5 + int.from_bytes(data[1:5], "big")
        contents.append(data[5:end])
        data = data[end:]
    return contents


def told(messages: list[bytes]) -> list[tuple[str, str]]:
    """(id, what) of each response of a stream."""
    found = []
    for response in map(service_pb2.ModelStreamInferResponse.FromString, messages):
        what = response.error_message or ("audio" if response.infer_response.outputs else "final")
        found.append((response.infer_response.id, what.partition(":")[0]))
    return found


@pytest.fixture(scope="module", params=["plain", "tls"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GateRig, TlsSettings | None]]:
    tls = certificate(tmp_path_factory.mktemp("tls")) if request.param == "tls" else None
    with GateRig(Speakers(), tls=tls) as rig:
        yield rig, tls


@pytest.fixture
def curl(door: tuple[GateRig, TlsSettings | None], tmp_path: Path) -> Iterator[Curl]:
    """Afterwards nothing of its calls is left."""
    rig, tls = door
    yield Curl(rig, tls, tmp_path)
    rig.wait_for(lambda: rig.gate.admission.calls == rig.gate.admission.sessions == 0)


STREAM, LIVE = f"{SERVICE}/ModelStreamInfer", f"{SERVICE}/ServerLive"
START = message(request_id="start", target_text="x", session_id="a", is_start=True, is_end=False)
END = message(request_id="end", target_text="y", session_id="a", is_start=False, is_end=True)
CANCEL = message(request_id="cancel", session_id="a", is_cancel=True)
SPOKEN = [("start", "audio"), ("end", "final"), ("start", "audio"), ("start", "final")]


def test_health(curl: Curl) -> None:
    assert curl.one(LIVE, framed(service_pb2.ServerLiveRequest())) == (OK, [service_pb2.ServerLiveResponse(live=True).SerializeToString()])
    status, (answer,) = curl.one(f"{HEALTH}/Check", framed(health_pb2.HealthCheckRequest()))
    assert status == OK and health_pb2.HealthCheckResponse.FromString(answer).status == health_pb2.HealthCheckResponse.SERVING
    assert curl.one(f"{HEALTH}/Check", framed(health_pb2.HealthCheckRequest(service="none"))) == (NOT_FOUND, [])


def test_a_session_with_two_pieces(curl: Curl) -> None:
    status, messages = curl.one(STREAM, framed(START, END))
    assert status == OK and sorted(told(messages)) == sorted(SPOKEN)


def test_a_cancel(curl: Curl) -> None:
    status, messages = curl.one(STREAM, framed(START, CANCEL))
    assert status == OK and {("start", "CANCELLED"), ("start", "final"), ("cancel", "final")} <= set(told(messages))


def test_a_deadline_ends_a_session_that_does_not(curl: Curl) -> None:
    status, messages = curl.one(STREAM, framed(START), "--header", "grpc-timeout: 300m")
    assert status == DEADLINE_EXCEEDED and set(told(messages)) <= {("start", "audio")}


def test_the_death_of_the_program_ends_its_session(curl: Curl) -> None:
    process = subprocess.Popen(curl.command([STREAM], framed(START)), stdout=subprocess.DEVNULL)
    curl.rig.wait_for(lambda: curl.rig.gate.admission.sessions == 1)
    process.kill()
    process.wait()


def test_a_hundred_streams_of_one_connection(curl: Curl) -> None:
    needs_reuse(curl)
    whole = message(request_id="start", target_text="x", is_end=True)
    answers = curl.ask([STREAM] * MANY, framed(whole), "--parallel", "--parallel-max", str(MANY))
    assert [(status, told(messages)) for status, messages in answers] == [(OK, [("start", "audio"), ("start", "final")])] * MANY


def test_a_refused_call_leaves_the_connection(curl: Curl) -> None:
    needs_reuse(curl)
    body = framed(service_pb2.ModelMetadataRequest(name="nope"))
    answers = curl.ask([f"{SERVICE}/ModelMetadata", f"{SERVICE}/ModelReady", f"{SERVICE}/ModelMetadata"], body)
    assert [status for status, _ in answers] == [NOT_FOUND, OK, NOT_FOUND]


def test_an_unknown_call_leaves_the_connection(curl: Curl) -> None:
    """It is refused before its body is read, by headers and a reset without an error, which curl 7.88 takes for no answer at all."""
    needs_reuse(curl)
    unknown, known = curl.ask([f"{SERVICE}/Nothing", LIVE], framed(service_pb2.ServerLiveRequest()))
    assert unknown[0] in (UNIMPLEMENTED, "") and known[0] == OK


@pytest.mark.parametrize("count", [0, 2])
def test_a_unary_call_has_one_message(curl: Curl, count: int) -> None:
    assert curl.one(LIVE, framed(*[service_pb2.ServerLiveRequest()] * count)) == (INVALID_ARGUMENT, [])


def test_http_1_is_not_spoken(curl: Curl) -> None:
    """The connection ends; the next one is served."""
    words = [word for word in curl.command([LIVE], b"") if not word.startswith("--http2")]
    done = subprocess.run([*words, "--http1.1"], capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert curl.one(LIVE, framed(service_pb2.ServerLiveRequest()))[0] == OK

"""The gate before @grpc/grpc-js, a gRPC client that shares no code with grpc's own. Plain and TLS, with pings every 0.5 s."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway.settings import GateLimits, TlsSettings
from tests.clients.conftest import found_by_node
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.rig import FakeTriton, GateRig, certificate
from tests.unit.gateway.test_grpclib import SecureProcess

pytestmark = pytest.mark.slow
PROGRAM = "tests/clients/programs/grpc_calls.cjs"
KEEPALIVE_MS, SHARE, STREAMS = 500, 128, 100  # streams at a time that an address may have, and that are opened
OK, CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE = 0, 1, 4, 8, 12, 14
SPOKEN = {"heard": ["start 0", "start 1", "start 2", "start final"], "code": OK}


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> TlsSettings | None:
    return certificate(tmp_path) if request.param == "tls" else None


def found(address: str, tls: TlsSettings | None, folder: Path, **more: Any) -> Any:
    """What the program says."""
    files = [module.DESCRIPTOR.serialized_pb for module in (model_config_pb2, service_pb2, health_pb2)]
    (folder / "descriptors").write_bytes(
        descriptor_pb2.FileDescriptorSet(file=map(descriptor_pb2.FileDescriptorProto.FromString, files)).SerializeToString()
    )
    given = {
        "address": address,
        "descriptors": str(folder / "descriptors"),
        "certificate": None if tls is None else str(tls.certificate),
        "keepalive_ms": KEEPALIVE_MS,
        "streams": STREAMS,
        "share": SHARE,
        **more,
    }
    return found_by_node(PROGRAM, json.dumps(given))


def test_calls(tls: TlsSettings | None, tmp_path: Path) -> None:
    with GateRig(Speakers(), GateLimits(streams_per_address=SHARE), tls=tls) as rig:
        it = found(rig.grpc_url, tls, tmp_path)
        rig.wait_for(lambda: rig.gate.admission.calls == rig.gate.admission.sessions == 0)
    assert it["live"] and it["health"]["status"] in (1, "SERVING")
    assert it["session"] == it["silent"] == it["after"] == SPOKEN and it["many"] == STREAMS * [SPOKEN]
    assert {"start CANCELLED", "start final", "cancel final"} <= set(it["cancelled"]["heard"]) and it["cancelled"]["code"] == CANCELLED
    assert it["deadline"] == DEADLINE_EXCEEDED and it["unknown"]["code"] == UNIMPLEMENTED
    assert it["refused"][:2] == ["wrong INVALID_INPUT", "wrong final"] and it["refused"][-1] == "start final"
    assert it["busy"]["code"] == RESOURCE_EXHAUSTED and it["busy"]["details"].startswith("BUSY: ")


def test_a_drain(tls: TlsSettings | None, tmp_path: Path) -> None:
    server = FakeTriton(Speakers())
    with SecureProcess(tmp_path, server, tls) as gate:
        it = found(gate.grpc_url, tls, tmp_path, process=gate.process.pid)
        gate.check_end("draining: 1 sessions")
    server.stop()
    assert (it["session"], it["late"]) == (SPOKEN, "late SHUTTING_DOWN")
    assert it["end"] in (UNAVAILABLE, CANCELLED), "the call that is on its way as the door closes is cancelled by gRPC"

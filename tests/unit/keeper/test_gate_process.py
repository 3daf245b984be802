"""``python -m gateway`` as the keeper starts it: its doors, its silence, its reasons not to start. And what it is told of the models."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.keeper import gate_plan
from bistream.keeper.gate_plan import fit_limits, inner_ports
from bistream.keeper.gate_process import ROOT, GateProcess, ask_ready, failure_sentence
from bistream.keeper.host import ServerError, url
from bistream.keeper.model_processes import process_state
from bistream.keeper.server_process import Interrupted
from gateway.settings import GateLimits, GateSettings, Listen, TlsSettings, UpstreamSettings
from scripts.make_model_repo import read_template
from scripts.serve import gate_settings, parse_arguments, server_settings
from tests.ports import ports
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.rig import FakeTriton

TIMEOUT_S = 120.0


@pytest.fixture
def server() -> Iterator[FakeTriton]:
    made = FakeTriton(Speakers())
    yield made
    made.stop()


def settings(server: FakeTriton, **options: Any) -> GateSettings:
    upstream = UpstreamSettings(server.address, poll_interval_s=0.05)
    return GateSettings(upstream, grpc=Listen(port=0), http=Listen(port=0), **options)


def ready_after_a_while(gate: GateProcess) -> bool:
    deadline, is_ready = time.monotonic() + TIMEOUT_S, None
    while not is_ready and time.monotonic() < deadline:
        is_ready = ask_ready(gate.settings, TIMEOUT_S)
    return bool(is_ready)


def test_it_answers_and_a_successor_takes_its_ports(server: FakeTriton) -> None:
    grpc_port, http_port = ports(2)
    first = GateProcess(replace(settings(server), grpc=Listen(port=grpc_port), http=Listen(port=http_port)))
    first.start()
    try:
        assert ready_after_a_while(first)
        first.kill()
        second = GateProcess(first.settings)
        second.start()
        try:
            assert ready_after_a_while(second) and second.settings == first.settings
            second.ask_to_end()
            second.ask_to_end()
        finally:
            second.kill()
        assert first.exit_code() == -signal.SIGKILL
    finally:
        first.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_its_heart_beats_while_its_loop_turns(server: FakeTriton) -> None:
    gate = GateProcess(settings(server))
    gate.start()
    try:
        first = gate.vitals()
        wait_until(lambda: gate.vitals().beat != first.beat)
        wait_until(lambda: gate.vitals().processor_s > first.processor_s > 0.0)  # it asks for Triton's readiness
        os.kill(gate.pid, signal.SIGSTOP)
        wait_until(lambda: gate.vitals().is_held)
        with pytest.raises(TimeoutError):
            ask_ready(gate.settings, 0.1)
        gate.ask_to_end()
        wait_until(lambda: gate.exit_code() == 0)  # it goes on, and ends
    finally:
        gate.kill()
    assert gate.vitals().beat == 0


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pem")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize("mutual", [False, True])
def test_it_answers_over_tls_and_refuses_a_caller_without_certificate(server: FakeTriton, pem: tuple[Path, Path], mutual: bool) -> None:
    certificate, key = pem
    gate = GateProcess(settings(server, tls=TlsSettings(certificate, key, certificate if mutual else None)))
    gate.start()
    try:
        if mutual:
            assert ask_ready(gate.settings, TIMEOUT_S) is None
        else:
            assert ready_after_a_while(gate)
    finally:
        gate.kill()


def test_it_dies_with_its_keeper(server: FakeTriton) -> None:
    code = """
import os, signal, sys
from bistream.keeper.gate_process import GateProcess
from gateway.settings import GateSettings, Listen, UpstreamSettings
gate = GateProcess(GateSettings(UpstreamSettings(sys.argv[1]), grpc=Listen(port=0), http=Listen(port=0)))
gate.start()
print(gate.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, server.address], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    gate, deadline = int(done.stdout), time.monotonic() + TIMEOUT_S
    while process_state(gate) not in (None, "Z"):
        assert time.monotonic() < deadline, "the gate lives on"
        time.sleep(0.01)


def test_reasons_not_to_start_are_one_sentence(server: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"^The gate cannot start: gRPC port {port} .*; choose another one.$"):
            GateProcess(replace(settings(server), grpc=Listen(port=port))).start()
    with pytest.raises(ServerError, match="^The gate cannot start: .*none.* cannot be read"):
        GateProcess(settings(server, keys_file=tmp_path / "none")).start()
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError(\"No module named 'uvloop'\")\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ServerError, match="^The gate needs the Python package uvloop; run: bash run.sh setup"):
        GateProcess(settings(server)).start()


def test_an_unexplained_end_shows_the_log() -> None:
    assert "exit code -11" in failure_sentence("strange words", -11) and "strange words" in failure_sentence("strange words", -11)


def test_a_start_can_be_interrupted(server: FakeTriton) -> None:
    gate = GateProcess(settings(server))
    with pytest.raises(Interrupted):
        gate.start(lambda: True)
    assert gate.exit_code() is not None


@pytest.mark.parametrize(
    ("address", "expected"), [("0.0.0.0", "127.0.0.1:5"), ("::", "[::1]:5"), ("127.0.0.1", "127.0.0.1:5"), ("10.0.0.5", "10.0.0.5:5")]
)
def test_urls_are_for_clients_on_this_host(address: str, expected: str) -> None:
    assert url(address, 5) == expected


# What it is told of the models


def repository(folder: Path, max_text_chars: int) -> Path:
    template = read_template("cosyvoice2_bistream")
    (folder / "cosyvoice2_bistream").mkdir(parents=True, exist_ok=True)
    text = template.replace("${max_text_chars}", str(max_text_chars)).replace("${sample_rate}", "16000")
    assert text != template
    (folder / "cosyvoice2_bistream" / "config.pbtxt").write_text(text, encoding="utf-8")
    return folder


@given(st.integers(0, 10**7))
def test_the_longest_text_passes_the_gate(max_text_chars: int) -> None:
    limit = max(16_000, len(("\U0001f600" * 10).encode()) * max_text_chars // 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate_plan, "_largest", lambda repository, name: max_text_chars if name == "max_text_chars" else 0)
        assert fit_limits(GateLimits(), Path("/none")).max_text_bytes == limit
        assert fit_limits(GateLimits(max_text_bytes=17), Path("/none")).max_text_bytes == 17  # somebody wanted it so


def test_the_length_of_a_text_and_the_rate_of_the_audio_are_read_from_the_model_repository(tmp_path: Path) -> None:
    limits = fit_limits(GateLimits(), repository(tmp_path, 100_000))
    assert (limits.max_text_bytes, limits.sample_rate) == (400_000, 16_000)
    assert fit_limits(GateLimits(), tmp_path / "none") == GateLimits()


def test_inner_ports_are_free_and_outside_the_systems_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    for metrics in (None, 8002):
        ports = inner_ports(metrics)
        assert len({ports.http, ports.grpc, ports.metrics}) == 3 and metrics in (None, ports.metrics)
        for port in (ports.http, ports.grpc):
            assert port < lowest
            with socket.create_server(("127.0.0.1", port)):
                pass


def test_inner_ports_leave_out_what_is_wanted_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("10005\t65535\n", encoding="ascii")
    monkeypatch.setattr(gate_plan, "_EPHEMERAL", tmp_path / "range")
    monkeypatch.setattr(gate_plan, "is_free", lambda address, port: True)
    for _ in range(20):
        ports = inner_ports(10_000, (10_001,))
        assert {ports.http, ports.grpc} <= {10_002, 10_003, 10_004}


def test_inner_ports_exist_where_the_system_leaves_no_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("1024\t65535\n", encoding="ascii")
    monkeypatch.setattr(gate_plan, "_EPHEMERAL", tmp_path / "range")
    ports = inner_ports(None)
    assert len({ports.http, ports.grpc, ports.metrics}) == 3


# What the command line of serve.py makes of it


def test_serve_gives_the_gate_the_public_addresses_and_the_server_loopback(tmp_path: Path) -> None:
    arguments = ["--model-repository", str(tmp_path), "--grpc-address", "0.0.0.0", "--http-port", "5000", "--drain-timeout-s", "9"]
    options = parse_arguments([*arguments, "--keys-file", "keys", "--sessions-per-address", "0", "--starts-per-second", "1.5"])
    server = server_settings(options)
    gate = gate_settings(options, server, tmp_path / "hold")
    assert server.ports is not None
    assert (server.grpc_address, server.http_address, server.ports.metrics) == ("127.0.0.1", "127.0.0.1", 8002)
    assert gate.upstream.address == f"127.0.0.1:{server.ports.grpc}" and gate.drain_timeout_s == 9.0
    assert gate.upstream.hold_file == tmp_path / "hold"
    assert (gate.grpc, gate.http) == (Listen("0.0.0.0", 8001), Listen("127.0.0.1", 5000))
    assert gate.keys_file == Path.cwd() / "keys"
    assert gate.limits == GateLimits(sessions_per_address=0, starts_per_second=1.5)


def test_serve_without_a_gate_is_as_asked_and_accepts_no_option_of_the_gate(capsys: pytest.CaptureFixture[str]) -> None:
    server = server_settings(parse_arguments(["--direct", "--grpc-address", "0.0.0.0"]))
    assert server.ports is not None and (server.grpc_address, server.ports.grpc, server.ports.http) == ("0.0.0.0", 8001, 8000)
    for option in (["--keys-file", "x"], ["--tls-certificate", "c", "--tls-key", "k"], ["--max-sessions", "5"]):
        with pytest.raises(SystemExit):
            parse_arguments(["--direct", *option])
        assert "--direct serves without it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments(["--tls-key", "k"])

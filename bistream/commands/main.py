"""The command ``bistream``: finds the sub-command and hands it the rest of the command line.

Each sub-command is the ``main(arguments)`` of a module that is imported only when it is called, so that those of clients need nothing
but the clients' packages.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module

from bistream import __version__
from bistream.client.exit_codes import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, fail
from bistream.processes.loopback import reach_this_host_directly

EXIT_UNREAD = 1


@dataclass(frozen=True)
class Command:
    """extra: of the package, which brings what the module needs."""

    module: str
    extra: str
    summary: str


COMMANDS = {
    "say": Command("bistream.client.say", "client", "speak a text, or the standard input as it comes, through a server"),
    "say-http": Command("bistream.client.say_http", "client", "speak a whole text over HTTP"),
    "convert": Command("bistream.client.convert", "client", "speak the words of a recording in another voice"),
    "health": Command("bistream.client.health", "client", "is a server alive and ready"),
    "info": Command("bistream.client.info", "client", "what a server is, and what its models take and give"),
    "voices": Command("bistream.commands.voices", "server", "add, list or remove voices that callers name instead of sending a recording"),
    "serve": Command("bistream.commands.serve", "server", "serve a model repository (of a checkout: bash run.sh 2 2 makes it)"),
    "evaluate": Command("bistream.commands.evaluate", "server", "judge what a checkpoint or a server sounds like, in several forms"),
    "detect": Command("bistream.commands.detect", "server,watermark", "have recordings the mark of synthetic speech"),
    "doctor": Command("bistream.commands.doctor", "server", "examine a model directory: its files, and what 16 bit costs its networks"),
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code of the sub-command; 2 where there is no such command, or its packages are not installed."""
    words = sys.argv[1:] if arguments is None else arguments
    reach_this_host_directly()
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails at its end, writing what is left
        return EXIT_UNREAD
    except KeyboardInterrupt:
        return fail("interrupted", EXIT_INTERRUPTED)


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return EXIT_OK if words else EXIT_USAGE
    if words[0] == "--version":
        print(__version__)
        return EXIT_OK
    command = COMMANDS.get(words[0])
    if command is None:
        return fail(f"bistream has no command {words[0]!r}; `bistream help` lists them.", EXIT_USAGE)
    sys.argv[0] = f"bistream {words[0]}"  # the program's name in the messages of argparse
    try:
        code: int = import_module(command.module).main(words[1:])
        return code
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("bistream"):
            raise
        return fail(f"The package {error.name} is not installed; run in the checkout: pip install '.[{command.extra}]'", EXIT_USAGE)


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
    return f"usage: bistream COMMAND ...\n\n{rows}\n\n`bistream COMMAND --help` shows the options of a command."

"""``bistream health``: is a server alive and ready? Exit codes: 0 ready, 1 not ready, 2 wrong usage, 3 no connection."""

from __future__ import annotations

import argparse

from bistream.client.exit_codes import EXIT_OK, EXIT_SERVER
from bistream.client.inquiry import MODELS, Inquiry, ask, show


def main(arguments: list[str] | None = None) -> int:
    return ask("Is a server alive and ready? Exit code 0: ready, 1: not ready, 3: no connection.", arguments, _answer)


def _answer(server: Inquiry, options: argparse.Namespace) -> int:
    state = {"live": server.is_live(), "ready": server.is_ready(), **{name: server.is_ready(name) for name in MODELS}}
    if options.json:
        show(state)
    else:
        for name, holds in state.items():
            print(f"{name:20} {'yes' if holds else 'no'}")
    return EXIT_OK if state["ready"] else EXIT_SERVER

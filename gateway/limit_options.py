"""Limits, each of which is an option of a command line. Used by the gate, by those who start it, and by the interfaces."""

from __future__ import annotations

import argparse
from dataclasses import field, fields
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)
Limits = TypeVar("Limits")


def limit(default: Number, meaning: str) -> Number:
    """A field of a dataclass. meaning: for people, behind the name of the option."""
    return field(default=default, metadata={"meaning": meaning})


def add_limits(parser: argparse.ArgumentParser, of: type[Any]) -> None:
    """of: a dataclass whose fields are made by ``limit``."""
    group = parser.add_argument_group("limits")
    for one in fields(of):
        kind = float if isinstance(one.default, float) else int
        text = f"{one.metadata['meaning']} (default %(default)s)"
        group.add_argument(flag(one.name), type=kind, default=one.default, metavar="N", help=text)


def check_limits(parser: argparse.ArgumentParser, options: argparse.Namespace, of: type[Any]) -> None:
    """Ends the program where one is below 0."""
    wrong = [one.name for one in fields(of) if getattr(options, one.name) < 0]
    if wrong:
        parser.error(f"{flag(wrong[0])} must be 0 or more")


def limits_of(options: argparse.Namespace, of: type[Limits]) -> Limits:
    """of: as of ``add_limits``."""
    return of(**{one.name: getattr(options, one.name) for one in fields(of)})  # type: ignore[arg-type]  # a dataclass


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

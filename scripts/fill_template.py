#!/usr/bin/env python3
"""Fills the ${placeholders} of one config.pbtxt template; every placeholder needs a value, and unknown keys are an error.

    fill_template.py -i FILE key:value,key:value                 fills the file in place (the call form of NVIDIA's script)
    fill_template.py FILE key:value,key:value                    prints the finished file

A pair is split at its first colon, so values may hold colons; a comma or backslash inside a value is written \\, or \\\\.
It needs only Python; if tritonclient is installed, the result is also parsed as a ModelConfig.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
BARE_VALUE = re.compile(r"[A-Za-z0-9_.+-]+\Z")  # allowed outside quotes: a number, a boolean, an enum


class TemplateError(Exception):
    """The template or the values are wrong; the message says what to change."""


def placeholders(template: str) -> set[str]:
    return set(PLACEHOLDER.findall(template))


def fill(template: str, values: Mapping[str, str], origin: str = "the template") -> str:
    """The finished text. Raises ``TemplateError`` on an unknown or missing key, or if there is no placeholder."""
    wanted = placeholders(template)
    if not wanted:
        raise TemplateError(f"{origin} has no placeholder: it is filled already; start again from the template.")
    unknown, missing = sorted(set(values) - wanted), sorted(wanted - set(values))
    if unknown:
        raise TemplateError(f"{origin} has no placeholder {', '.join(unknown)}; it has {', '.join(sorted(wanted))}.")
    if missing:
        raise TemplateError(f"{origin} needs a value for {', '.join(missing)}.")

    def literal(match: re.Match[str]) -> str:
        line = template[template.rfind("\n", 0, match.start()) + 1 : match.start()]
        is_quoted = re.findall(r'\\.|"', line).count('"') % 2 == 1  # an escaped quote opens no string
        return _literal(match[1], values[match[1]], is_quoted)

    text = PLACEHOLDER.sub(literal, template)
    if "${" in text:
        raise TemplateError(f"{origin} still holds '${{' after filling; a placeholder is written ${{name}}.")
    check_model_config(text, origin)
    return text


def _literal(name: str, value: str, is_quoted: bool) -> str:
    if any(ord(character) < 32 for character in value):
        raise TemplateError(f"The value of {name} holds a control character; remove it.")
    if "${" in value:
        raise TemplateError(f"The value of {name} holds '${{', a variable that was not replaced; give its value.")
    if is_quoted:
        return value.replace("\\", "\\\\").replace('"', '\\"')
    if BARE_VALUE.match(value) is None:
        raise TemplateError(f"The value of {name} is {value!r}; a number or a word is needed there.")
    return value


def check_model_config(text: str, origin: str) -> None:
    """Parse as Triton's ``ModelConfig`` if tritonclient is installed; ``TemplateError`` with the parser's message."""
    try:
        from google.protobuf import text_format  # noqa: PLC0415  (optional: this script runs without it)
        from tritonclient.grpc import model_config_pb2  # noqa: PLC0415
    except ImportError:
        return
    try:
        text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise TemplateError(f"{origin} does not give a valid model configuration: {error}.") from error


def parse_pairs(text: str) -> dict[str, str]:
    """``key:value,key:value`` with \\, and \\\\ inside values."""
    parts = re.findall(r"(?:[^\\,]|\\.?)+", text, re.DOTALL)
    return _collect((re.sub(r"\\([\\,:])", r"\1", part) for part in parts), ":")


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """``key=value`` items as they come from ``--set``; nothing is escaped."""
    return _collect(settings, "=")


def _collect(pairs: Iterable[str], separator: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        key, found, value = pair.partition(separator)
        if not found or not key:
            raise TemplateError(f"{pair!r} is not key{separator}value; a comma inside a value is written \\, in the key:value form.")
        if key in values:
            raise TemplateError(f"{key} is given twice.")
        values[key] = value
    return values


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the template")
    parser.add_argument("pairs", help="key:value,key:value")
    parser.add_argument("-i", "--in-place", action="store_true", help="write the result over FILE")
    options = parser.parse_args(arguments)
    try:
        text = fill(options.file.read_text(encoding="utf-8"), parse_pairs(options.pairs), origin=str(options.file))
        if options.in_place:
            options.file.write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    except (TemplateError, OSError, UnicodeDecodeError) as error:
        print(f"fill_template.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

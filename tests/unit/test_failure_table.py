"""The table of failures in ``docs/operations.md`` quotes messages that the code has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE_SPAN = re.compile(r"`([^`]*)`")
BETWEEN_STRINGS = re.compile(r'"\s*\n\s*f?"')
PLACEHOLDER = re.compile(r"%[.\d]*[sdf]")


def program() -> str:
    """The source of the program, with strings that stand one after the other joined, and their placeholders left out."""
    paths = [path for folder in ("bistream", "gateway", "scripts") for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return PLACEHOLDER.sub("...", BETWEEN_STRINGS.sub("", text))


def rows() -> list[str]:
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8").partition("\n## Failures\n")[2]
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| seen")]


def quoted() -> list[str]:
    first_columns = (row.split("|")[1] for row in rows())
    return [found for column in first_columns for found in CODE_SPAN.findall(column) if " " in found]  # others are names


def test_the_table_has_what_to_do_in_every_row() -> None:
    assert len(rows()) > 20
    assert all(row.count("|") == 4 and all(cell.strip() for cell in row.split("|")[1:4]) for row in rows())


def test_the_quoted_messages_exist() -> None:
    text = program()
    parts = [part.strip() for sentence in quoted() for part in PLACEHOLDER.sub("...", sentence).split("...")]
    assert len(quoted()) > 10 and not [part for part in parts if part not in text]

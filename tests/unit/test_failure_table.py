"""The table of failures in ``docs/operations.md`` quotes messages that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.unit.syntax import syntax

ROOT = Path(__file__).resolve().parents[2]
CODE_SPAN = re.compile(r"`([^`]*)`")


@cache
def literals() -> list[str]:
    """Every string of the program; of f-strings the constant parts."""
    paths = [path for folder in ("bistream", "gateway", "scripts") for path in (ROOT / folder).rglob("*.py")]
    nodes = (node for path in paths for node in ast.walk(syntax(path)))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def rows() -> list[str]:
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8").partition("\n## Failures\n")[2]
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| seen")]


def quoted() -> list[str]:
    first_columns = (row.split("|")[1] for row in rows())
    return [found for column in first_columns for found in CODE_SPAN.findall(column) if " " in found]  # others are names


def test_the_table_has_what_to_do_in_every_row() -> None:
    assert len(rows()) > 25
    assert all(row.count("|") == 4 and all(cell.strip() for cell in row.split("|")[1:4]) for row in rows())


@pytest.mark.parametrize("sentence", quoted())
def test_a_quoted_message_exists(sentence: str) -> None:
    for part in sentence.split("..."):
        wanted = part.replace("%s", "").strip()
        assert not wanted or any(wanted in _without_placeholders(literal) for literal in literals()), wanted


@cache
def _without_placeholders(literal: str) -> str:
    return re.sub(r"%[.\d]*[sdf]", "...", literal)

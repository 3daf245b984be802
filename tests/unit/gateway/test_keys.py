"""API keys: their file, and the headers that carry them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bistream.errors import ConfigError
from gateway.keys import Keys
from gateway.refusals import UnauthenticatedError

KEY = "0123456789abcdef"
OTHER = "fedcba9876543210"


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    path = tmp_path / "keys"
    path.write_text(f"# who may speak\n\n{KEY} anna's phone\n{OTHER}\n", encoding="utf-8")
    return Keys.read(path)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"authorization": f"Token {KEY}"},
        {"x-api-key": KEY},
        {"xi-api-key": KEY},
        {"authorization": "Basic abc", "x-api-key": KEY},
    ],
)
def test_a_key_is_found_in_every_usual_header(keys: Keys, headers: dict[str, str]) -> None:
    assert keys.name_of(headers) == "anna's phone"


def test_a_key_without_a_name_has_the_same_one_wherever_it_stands(keys: Keys, tmp_path: Path) -> None:
    """An upload belongs to the name."""
    name = keys.name_of({"x-api-key": OTHER})
    (tmp_path / "others").write_text(f"{KEY}\n{OTHER}\n", encoding="utf-8")
    assert Keys.read(tmp_path / "others").name_of({"x-api-key": OTHER}) == name
    assert name.startswith("key-") and OTHER not in name


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-api-key": ""}, {"x-api-key": KEY + "0"}, {"authorization": KEY}, {"authorization": "Bearer "}, {"x-api-key": "ü\udcff"}],
)
def test_anything_else_is_refused_without_saying_it(keys: Keys, headers: dict[str, str]) -> None:
    with pytest.raises(UnauthenticatedError) as refused:
        keys.name_of(headers)
    assert KEY not in refused.value.sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no key"),
        ("# only this\n", "holds no key"),
        ("short\n", "fewer than 16"),
        (f"{KEY}ü\n", "ASCII"),
        (f"{KEY} a\n{KEY} b\n", "twice"),
        (f"{KEY} a\n{OTHER} a\n", "twice"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as refused:
        Keys.read(path)
    assert KEY not in refused.value.sentence


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        Keys.read(tmp_path / "nowhere")

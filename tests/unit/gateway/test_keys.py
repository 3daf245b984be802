"""API keys: their file, and the headers that carry them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bistream.contract.lexicon import MAX_ENTRIES
from bistream.errors import ConfigError, UnauthenticatedError
from gateway.keys import Keys

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


def test_files_that_begin_with_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY} anna lexicon=words.json\r\n", encoding="utf-8-sig")
    (tmp_path / "words.json").write_text('{"GmbH": "Gesellschaft"}', encoding="utf-8-sig")
    keys = Keys.read(tmp_path / "keys")
    assert keys.name_of({"x-api-key": KEY}) == "anna" and json.loads(keys.lexicon_of("anna")) == {"GmbH": "Gesellschaft"}


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
        (f"{KEY} a watermark=off\n", "Line 1 of .* cannot be read"),
        (f"{KEY} watermark=on a\n", "Line 1 of .* cannot be read"),
        (f"{KEY} a Watermark = on\n", "Line 1 of .* cannot be read"),
        (f"{KEY} a watermark\n", "Line 1 of .* cannot be read"),
        (f"{KEY} a lexicon=words.json watermark=on\n", "Line 1 of .* cannot be read"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as refused:
        Keys.read(path)
    assert KEY not in refused.value.sentence


def test_a_key_may_have_a_lexicon_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "two words.json").write_text('{"SQL":"sequel"}', encoding="utf-8")
    (tmp_path / "keys").write_text(f"{KEY} anna's phone  lexicon=two words.json \n{OTHER}\tlexicon={tmp_path}/two words.json\n")
    keys = Keys.read(tmp_path / "keys")
    names = [keys.name_of({"x-api-key": key}) for key in (KEY, OTHER)]
    assert names[0] == "anna's phone" and names[1].startswith("key-")
    assert [json.loads(keys.lexicon_of(name)) for name in names] == [{"SQL": "sequel"}] * 2


def test_a_key_without_settings_has_none(keys: Keys) -> None:
    assert keys.lexicon_of("anna's phone") == keys.lexicon_of(None) == ""
    assert not keys.is_marked("anna's phone") and not keys.is_marked(None)


def test_a_key_may_have_its_audio_marked(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text('{"SQL":"sequel"}', encoding="utf-8")
    (tmp_path / "keys").write_text(f"{KEY} anna's phone watermark=on  lexicon=words.json\n{OTHER}  watermark=on\n")
    keys = Keys.read(tmp_path / "keys")
    names = [keys.name_of({"x-api-key": key}) for key in (KEY, OTHER)]
    assert names[0] == "anna's phone" and names[1].startswith("key-")
    assert all(map(keys.is_marked, names)) and keys.lexicon_of(names[0]) and not keys.lexicon_of(names[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("[]", "must be a JSON object"),
        ('{"a": 1}', "must give 'a'"),
        (json.dumps({f"word{index}": "b" for index in range(MAX_ENTRIES + 1)}), "more than"),
        (json.dumps({f"word{index}": "b" * 100 for index in range(MAX_ENTRIES)}), "longer than"),
    ],
)
def test_a_lexicon_that_cannot_be_used_is_an_error_of_the_keys_file(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "words.json").write_text(content)
    (tmp_path / "keys").write_text(f"# comment\n{KEY} anna lexicon=words.json\n")
    with pytest.raises(ConfigError, match=f"The lexicon in line 2 of .*keys cannot be used: .*{words}") as refused:
        Keys.read(tmp_path / "keys")
    assert KEY not in refused.value.sentence


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        Keys.read(tmp_path / "nowhere")

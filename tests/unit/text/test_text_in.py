"""Text in pieces gives the ids of the whole text for all cuts; the held-back text is bounded."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import CheckpointError, InvalidInputError
from bistream.families.cosyvoice2 import ADDED_TOKENS, BASE_TOKENS
from bistream.text.text_ends import is_complete, is_run_of_letters, starts_segment
from bistream.text.text_in import WINDOW_CHARS, TextIn
from bistream.text.tokenizer import TextTokenizer
from scripts._tokenizer_files import FULL_VOCAB_SIZE, make_vocabulary, write_tokenizer_files
from tests.unit.text.pieces import byte_symbol, stream, tokens_of

VOCAB_SIZE = 2200
# Every pair of these bytes is a merge, so that nearly any other cut of a text changes its ids: spaces, punctuation, letters
# that compose, marks, and Chinese characters, also across character boundaries.
PAIRED_BYTES = sorted({*b" \n\t!.-'[<aeos", *"\u0301\u4eca\u7532\u4e59".encode()})
FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tokenizer_files(directory, VOCAB_SIZE)
    qwen = directory / "CosyVoice-BlankEN"
    vocabulary, merges = make_vocabulary(VOCAB_SIZE)
    symbols = [byte_symbol(byte) for byte in PAIRED_BYTES]
    pairs = [(left, right) for left in symbols for right in symbols if left + right not in vocabulary]
    entries = [entry for entry in vocabulary if not entry.startswith("<unused_")] + [left + right for left, right in pairs]
    entries += [f"<unused_{index}>" for index in range(VOCAB_SIZE - len(entries))]
    (qwen / "vocab.json").write_text(json.dumps({entry: index for index, entry in enumerate(entries)}), encoding="utf-8")
    lines = [f"{left} {right}\n" for left, right in [*merges, *pairs]]
    (qwen / "merges.txt").write_text("#version: 0.2\n" + "".join(lines), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> TextTokenizer:
    return TextTokenizer.from_model_dir(model_dir)


SNIPPETS = (
    *(BASE_TOKENS + ADDED_TOKENS),
    *("[", "<", "<|", "</", "[brea", "<|endof", "[laughter", "<laughter", "][", "<<"),
    *("'s", "'T", "'re", "'ll", "'l", "'", "I'm", "they've", "'d"),
    *(" ", "  ", "\n", "\r\n", " \n ", "\t", "\u3000", "\u00a0", "\u2028", "\x1c", "\x85"),
    *("!", "...", "?!\n", "\u3002", "\uff0c", "\u201c"),
    *("0", "12", "3.5", "\u0665", "\u00bd", "\u2167", "hello", "wonderful ", "Hello", "internationalisation", "a", "e", "o"),
    *("\u4eca\u5929", "\u5929\u6c14\u5f88\u597d", "\u4f60", "\u304b\u306a"),
    *("\ubc14\ub78c", "\u0938\u094d\u0924\u0947", "\u0e19\u0e49\u0e33", "e\u0301", "\u1112\u1161\u11ab", "\uac00"),
    *("\u0301", "\u0308", "\u0323", "\u1161", "\u11ab", "\u212b", "\uf900", "\u0344", "\u0958", "\U00011131"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f600", "\u2764\ufe0f", "\U0001f44d\U0001f3fd"),
    *("\ufeff", "\u200b", "\x00"),
)
ANY_CHARACTER = st.characters(exclude_categories=["Cs"])
TEXTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), ANY_CHARACTER), max_size=24).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=30)


def within_bound(tokenizer: TextTokenizer, text: str) -> bool:
    """Whether every run but those of letters is shorter than the bound, so that the ids must be those of the whole text."""
    while text:
        index, special = tokenizer.find_special(text, final=True)
        plain = text[:index]
        text = text[index + len(special or "") :]
        segment_length = 0
        for character in plain:
            segment_length = 1 if starts_segment(character) else segment_length + 1
            if segment_length > WINDOW_CHARS:
                return False
        normalized = tokenizer.normalize(plain)
        ends = [0, *(end for _, end in tokenizer.pre_tokenize(normalized))]
        matches = [normalized[start:end] for start, end in zip(ends, ends[1:], strict=False)]
        if any(len(match) >= WINDOW_CHARS and not is_run_of_letters(match) for match in matches):
            return False
        white_run = 0
        for character in normalized:
            white_run = white_run + 1 if character.isspace() else 0
            if white_run >= WINDOW_CHARS:
                return False
    return True


LONG_RUNS = st.lists(
    st.one_of(
        st.text(st.sampled_from("\u4eca\u5929\u6c14\u5f88\u597d\u6211\u4eec"), min_size=10, max_size=60),
        st.text(st.sampled_from("\u7532\u4e59\u4eca"), min_size=10, max_size=60),
        st.text(st.sampled_from("etaoin"), min_size=10, max_size=60),
        st.text(st.sampled_from(" \n\t"), min_size=10, max_size=40),
        st.text(st.sampled_from("!-\n."), min_size=10, max_size=40),
        st.text(st.sampled_from("\u0301\u0323\u0308e"), min_size=10, max_size=40),
        st.sampled_from(SNIPPETS),
    ),
    min_size=1,
    max_size=5,
).map("".join)


DENSE = st.text(st.sampled_from(" \n\t!.-'[<aeos1\u0301\u4eca\u7532\u4e59"), max_size=40)  # every cut matters


@given(text=st.one_of(TEXTS, DENSE, LONG_RUNS), cuts=CUTS)
@settings(max_examples=150)
def test_any_cut_gives_the_ids_of_the_whole_text(tokenizer: TextTokenizer, text: str, cuts: list[int]) -> None:
    """Beyond the bound they depend on the text alone, too; each covers its part of the text."""
    data = text.encode()
    tokens = stream(tokenizer, data, [])
    assert stream(tokenizer, data, cuts) == stream(tokenizer, data, list(range(len(data)))) == tokens
    if within_bound(tokenizer, text):
        assert [token.id for token in tokens] == tokenizer.encode(text)
    ends = [token.end_char for token in tokens]
    assert ends == sorted(ends) and (ends[-1] if ends else 0) == len(text)


@given(text=st.one_of(TEXTS, LONG_RUNS))
@settings(max_examples=60)
def test_the_held_back_text_is_bounded(tokenizer: TextTokenizer, text: str) -> None:
    text_in = TextIn(tokenizer)
    longest_special = max(map(len, tokenizer.special_tokens))
    end_char = 0
    for index, character in enumerate(text):
        for token in tokens_of(text_in, character.encode()):
            end_char = token.end_char
        # All that may be held back: the beginning of a special token, one segment, and less than one window.
        held = tokenizer.normalize(text[end_char : index + 1])
        segments = sum(starts_segment(character) for character in held)
        assert segments <= longest_special + WINDOW_CHARS + 1
        assert index + 1 - end_char <= longest_special + WINDOW_CHARS * (WINDOW_CHARS + 1)


@given(text=st.text(st.sampled_from("\u4eca\u5929\u7532\u4e59\u6c14aetoinsh\u304b\u3099"), max_size=150), cuts=CUTS)
@settings(max_examples=60)
def test_a_run_of_letters_of_any_length_has_the_ids_of_the_whole(tokenizer: TextTokenizer, text: str, cuts: list[int]) -> None:
    for places in (cuts, list(range(3 * len(text)))):
        assert [token.id for token in stream(tokenizer, text.encode(), places)] == tokenizer.encode(text)


def test_a_chinese_paragraph_without_punctuation_is_spoken_before_it_ends(tokenizer: TextTokenizer) -> None:
    text_in = TextIn(tokenizer)
    paragraph = "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u6211\u4eec\u4e00\u8d77\u53bb\u516c\u56ed\u6563\u6b65\u5427" * 20
    end_char = 0
    for index, character in enumerate(paragraph):
        for token in tokens_of(text_in, character.encode()):
            end_char = token.end_char
        assert index + 1 - end_char <= WINDOW_CHARS
    assert end_char >= len(paragraph) - WINDOW_CHARS


def test_many_marks_on_one_character_do_not_hold_back_the_text(tokenizer: TextTokenizer) -> None:
    text_in = TextIn(tokenizer)
    end_char = 0
    for index, character in enumerate("e" + "\u0301" * 100):
        for token in tokens_of(text_in, character.encode()):
            end_char = token.end_char
        assert index + 1 - end_char <= 2 * WINDOW_CHARS


def test_a_part_of_a_composition_does_not_count_as_covered(tokenizer: TextTokenizer) -> None:
    """Nothing composes here, so two pattern matches share the two characters, and the first covers neither completely."""
    ends = [token.end_char for token in stream(tokenizer, "a q\u0301".encode(), [])]
    assert ends[0] == 1
    assert max(ends[:-1]) == 2
    assert ends[-1] == 4


def test_a_cut_by_the_bound_never_goes_through_a_character(tokenizer: TextTokenizer) -> None:
    """Tokens that join the end of one character to the beginning of the next, at every offset from the cut."""
    run = "\u7532\u4e59" * 12
    ends_inside = set()
    for offset in range(4):
        text = "\u4e59" * offset + run
        num_bytes = 0
        for _, size in tokenizer.encode_piece(tokenizer.pre_tokenize(text)[0][0]):
            num_bytes += size
            ends_inside.add(num_bytes % 3 != 0)
        assert stream(tokenizer, text.encode(), [])[-1].end_char == len(text)
    assert True in ends_inside


@pytest.mark.parametrize(
    ("pieces", "certain"),
    [
        ((b"hel", b"lo"), ["he"]),  # the word may continue, but no entry of the vocabulary joins its first token to what follows
        ((b"hello", b" "), ["hello"]),
        ((b"hello w",), ["hello"]),
        ((b"it's",), ["it"]),  # 's is decided, but it is not yet certain that the text continues after it
        ((b"a  b",), ["a", " "]),
        ((b"a \n",), ["a"]),
        ((b"[brea",), []),
        ((b"[breath]",), ["[breath]"]),
        ((b"x[breath]",), ["x", "[breath]"]),
        ((b"[break ",), ["[break"]),
        ((b"hello.",), ["hello"]),
        ((b"it's so",), ["it", "'s"]),
        (("e\u0301".encode(), b"x "), ["e\u0301x"]),
        (("\u4f60".encode()[:2],), []),
        (("1\u4f60".encode(),), ["1"]),
    ],
)
def test_ids_that_are_certain_come_at_once(tokenizer: TextTokenizer, pieces: tuple[bytes, ...], certain: list[str]) -> None:
    text_in = TextIn(tokenizer)
    ids = [token.id for piece in pieces for token in tokens_of(text_in, piece)]
    assert ids == [token_id for part in certain for token_id in tokenizer.encode(part)]


@given(prefix=TEXTS, data=st.binary(min_size=1, max_size=6), cut=st.integers(0, 8))
@settings(max_examples=60)
def test_text_is_accepted_exactly_if_it_is_utf8(tokenizer: TextTokenizer, prefix: str, data: bytes, cut: int) -> None:
    whole = prefix.encode() + data
    try:
        text = whole.decode()
    except UnicodeDecodeError:
        with pytest.raises(InvalidInputError, match="UTF-8"):
            stream(tokenizer, whole, [len(whole) - cut if cut < len(whole) else 0])
    else:
        assert stream(tokenizer, whole, [cut]) == stream(tokenizer, text.encode(), [])


@pytest.mark.parametrize("invalid", ["80", "c0", "e080", "eda0", "f08f", "f490", "f5", "e441", "e4bd41"])
def test_invalid_utf8_is_an_error_at_the_first_impossible_byte(tokenizer: TextTokenizer, invalid: str) -> None:
    data = bytes.fromhex(invalid)
    text_in = TextIn(tokenizer)
    tokens_of(text_in, b"hello " + data[:-1])
    with pytest.raises(InvalidInputError, match="not valid UTF-8"):
        tokens_of(text_in, data[-1:])
    with pytest.raises(InvalidInputError):  # and remains one
        tokens_of(text_in, b"x")


def test_an_open_utf8_sequence_is_an_error_at_the_end(tokenizer: TextTokenizer) -> None:
    text_in = TextIn(tokenizer)
    tokens_of(text_in, "\u4f60".encode()[:2])
    with pytest.raises(InvalidInputError, match="ends inside a UTF-8 character"):
        tokens_of(text_in, b"", is_end=True)


@cache
def composing() -> set[str]:
    """The first characters of all compositions: no other composes with what follows."""
    decomposed = (unicodedata.normalize("NFD", chr(code)) for code in range(0x80, 0x31000))
    return {each[0] for each in decomposed if len(each) > 1}


def test_a_segment_start_is_independent_of_what_precedes_it() -> None:
    """Against the definition: for every character that starts a segment, NFC of the joined text is the joined NFC."""
    before = [first for first in composing() if "A" <= first < "\u0250"]
    before += ["\u1100", "\uac00", "e\u0323", "\u0915", "\u09c7", "\u0b92", "\u1025", "\u3046", "\U00011131"]
    for code in range(0x80, 0x31000):
        character = chr(code)
        if 0xD800 <= code < 0xE000 or not starts_segment(character):
            continue
        assert unicodedata.combining(character) == 0
        assert unicodedata.normalize("NFC", character) == character
    starters = [chr(code) for code in range(0x80, 0x3100) if starts_segment(chr(code))]
    for first in before:
        composed = unicodedata.normalize("NFC", first)
        assert all(unicodedata.normalize("NFC", first + second) == composed + second for second in starters)


def test_no_character_composes_with_a_complete_one() -> None:
    """Against every composition and every mark in Unicode."""
    marks = [chr(code) for code in range(0x80, 0x31000) if unicodedata.combining(chr(code))]
    assert not any(is_complete(first) for first in composing())
    for code in (*range(0x3400, 0xA000, 97), 0x20000, 0x2A6DF):
        character = chr(code)
        if is_complete(character):
            assert unicodedata.normalize("NFC", character) == character
            assert all(unicodedata.normalize("NFC", character + mark) == character + unicodedata.normalize("NFC", mark) for mark in marks)


def test_composing_does_not_change_the_class_of_a_character() -> None:
    """Justifies the look-ahead at the base of an open segment, for every composition in Unicode."""

    def class_of(character: str) -> str:
        category = unicodedata.category(character)[0]
        return "space" if character.isspace() else category if category in "LN" else "other"

    for code in range(0x80, 0x31000):
        character = chr(code)
        if 0xD800 <= code < 0xE000:
            continue
        decomposed = unicodedata.normalize("NFD", character)
        if unicodedata.normalize("NFC", decomposed[0]) == decomposed[0]:
            assert class_of(unicodedata.normalize("NFC", character)[0]) == class_of(decomposed[0]), hex(code)


class TestTokenizerFiles:
    @settings(max_examples=60)
    @given(text=TEXTS)
    def test_any_text_has_the_ids_of_transformers(self, model_dir: Path, tokenizer: TextTokenizer, text: str) -> None:
        assert tokenizer.encode(text) == reference_tokenizer(model_dir)(text)["input_ids"]

    def test_the_full_size_has_the_ids_of_the_released_model(self, tmp_path: Path) -> None:
        write_tokenizer_files(tmp_path, FULL_VOCAB_SIZE)
        full = TextTokenizer.from_model_dir(tmp_path)
        assert full.special_tokens["<|endoftext|>"] == 151643
        assert full.special_tokens["<|endofprompt|>"] == 151646
        assert full.size == 151663
        assert full.encode("hello") == full.encode("hello[breath]")[:-1]

    @pytest.mark.parametrize("name", FILES)
    def test_a_missing_file_is_named(self, tmp_path: Path, name: str) -> None:
        write_tokenizer_files(tmp_path, 300)
        (tmp_path / "CosyVoice-BlankEN" / name).unlink()
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            TextTokenizer.from_model_dir(tmp_path)

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("vocab.json", b'{"a": 0'),
            ("vocab.json", b"[]"),
            ("vocab.json", b'{"a": 0, "b": 2}'),
            ("vocab.json", b'{"a": 0, "b": "1"}'),
            ("vocab.json", b'{"a": 0}'),
            ("vocab.json", b"\xff\xfe"),
            ("merges.txt", b"a b c\n"),
            ("merges.txt", b"#version: 0.2\nq \xc4\xa0zzz\n"),
            ("tokenizer_config.json", b"{"),
            ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}'),
            ("tokenizer_config.json", b'{"added_tokens_decoder": {"7000": {"content": "<|endoftext|>"}}}'),
        ],
    )
    def test_a_damaged_file_is_named(self, tmp_path: Path, name: str, content: bytes) -> None:
        write_tokenizer_files(tmp_path, 300)
        (tmp_path / "CosyVoice-BlankEN" / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=name):
            TextTokenizer.from_model_dir(tmp_path)

    def test_a_config_without_added_tokens_means_those_of_qwen2(self, tmp_path: Path) -> None:
        write_tokenizer_files(tmp_path, 300)
        path = tmp_path / "CosyVoice-BlankEN" / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        del config["added_tokens_decoder"]
        path.write_text(json.dumps(config), encoding="utf-8")
        assert TextTokenizer.from_model_dir(tmp_path).special_tokens["<|endofprompt|>"] == 303


_REFERENCES: dict[Path, Any] = {}


def reference_tokenizer(model_dir: Path) -> Any:
    """transformers' tokenizer with upstream's special tokens added as upstream adds them."""
    from transformers import Qwen2Tokenizer  # noqa: PLC0415  (slow to import: only where needed)

    if model_dir not in _REFERENCES:
        reference = Qwen2Tokenizer.from_pretrained(model_dir / "CosyVoice-BlankEN")
        others = [*BASE_TOKENS[1:], *ADDED_TOKENS]
        reference.add_special_tokens({"pad_token": "<|endoftext|>", "additional_special_tokens": others})
        _REFERENCES[model_dir] = reference
    return _REFERENCES[model_dir]

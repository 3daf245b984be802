"""The text of a session is counted and checked the same way however it is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.contract.field import Field
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import InvalidInputError
from bistream.sessions.playback import weight_of
from bistream.sessions.request_checks import TextLedger, check_append, check_start
from bistream.text.markup import MarkupReader
from bistream.text.special_tokens import SPECIAL_TOKENS
from tests.unit.cuts import pieces_of
from tests.unit.sessions.fakes import request_of, start_request

SETTINGS = settings(max_examples=20, deadline=None)
CUTS = st.lists(st.integers(0, 60), max_size=6)


def accepts(max_chars: int, pieces: list[bytes]) -> bool:
    ledger = TextLedger(max_chars)
    try:
        for index, piece in enumerate(pieces, 1):
            ledger.accept(piece, index == len(pieces))
    except InvalidInputError:
        return False
    assert ledger.ended
    return True


TEXTS = st.one_of(st.text(max_size=20), st.lists(st.sampled_from([" ", "a", ".", *SPECIAL_TOKENS]), max_size=3).map("".join))


@SETTINGS
@given(TEXTS, CUTS, st.integers(1, 20))
def test_whether_a_text_is_accepted_does_not_depend_on_its_cuts(text: str, cuts: list[int], max_chars: int) -> None:
    data = text.encode("utf-8", errors="ignore")
    kept = data.decode("utf-8")
    expected = 0 < len(kept) <= max_chars
    assert accepts(max_chars, [data]) is expected
    assert accepts(max_chars, pieces_of(data, cuts)) is expected


@SETTINGS
@given(st.binary(max_size=20), CUTS)
def test_bytes_are_accepted_exactly_when_they_are_utf8(data: bytes, cuts: list[int]) -> None:
    try:
        expected = bool(data.decode("utf-8"))
    except UnicodeDecodeError:
        expected = False
    assert accepts(100, pieces_of(data, cuts)) is expected


@SETTINGS
@given(st.text(min_size=1, max_size=10), st.sampled_from([b"\xff", b"x" * 50]), st.booleans(), CUTS)
def test_a_refused_piece_changes_nothing(text: str, bad: bytes, is_end: bool, cuts: list[int]) -> None:
    data = (text + "x").encode("utf-8", errors="ignore")
    ledger = TextLedger(40)
    pieces = pieces_of(data, cuts)
    for index, piece in enumerate(pieces, 1):
        with pytest.raises(InvalidInputError):
            ledger.accept(bad, is_end)
        ledger.accept(piece, index == len(pieces))
    assert ledger.ended


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b""], "empty"),
        ([b"", b""], "empty"),
        ([b"abc\xe4\xbd"], "ends inside a UTF-8 character"),
        ([b"abc\xe4\xbd", b""], "ends inside a UTF-8 character"),
        ([b"abc\xe4", b"x"], "not valid UTF-8"),
        ([b"\xed\xa0\x80"], "not valid UTF-8"),
        ([b"a" * 5, b"b" * 6], "longer than 10 characters"),
        ([b"abc", b"more after the end"], "already ended"),
    ],
)
def test_the_error_names_what_is_wrong(pieces: list[bytes], words: str) -> None:
    ledger = TextLedger(10)
    with pytest.raises(InvalidInputError, match=words):
        for index, piece in enumerate(pieces, 1):
            ledger.accept(piece, index == len(pieces) or words == "already ended")


GIVEN = {"BYTES": "x", "BOOL": True, "FP32": 1.5}


@pytest.mark.parametrize("field", [field for field in COSYVOICE2_BISTREAM.inputs if field.is_start_only], ids=lambda field: field.name)
def test_an_append_cannot_change_what_belongs_to_the_start(field: Field) -> None:
    with pytest.raises(InvalidInputError, match=field.name):
        check_append(request_of(session_id="s", is_start=False, **{field.name: GIVEN[field.datatype]}))


@pytest.mark.parametrize("watermark", ["off", "on_request", "on"])
def test_a_mark_is_refused_where_it_would_be_missing(watermark: str) -> None:
    config, marked = RuntimeConfig(watermark=watermark), start_request(is_marked=True)
    if watermark == "off":
        with pytest.raises(InvalidInputError, match="watermark=on_request"):
            check_start(marked, config)
    else:
        assert check_start(marked, config).audio.is_marked and not check_start(start_request(), config).audio.is_marked


def test_a_character_counts_with_its_first_byte() -> None:
    """The language model's service counts the same way, so it never refuses a piece that was accepted here."""
    ledger = TextLedger(3)
    ledger.accept(b"abc", False)
    with pytest.raises(InvalidInputError, match="longer than 3"):
        ledger.accept("é".encode()[:1], False)
    ledger.accept(b"", True)


SSML = '<speak>One <break time="1s"/><sub alias="two">2</sub> <say-as interpret-as="characters">ab</say-as> &amp; three.</speak>'


@SETTINGS
@given(CUTS)
def test_markup_is_checked_and_says_nothing(cuts: list[int]) -> None:
    """Neither does it keep a session alive, nor does it take time to be spoken."""
    ledger, speakable = TextLedger(200, markup=MarkupReader), []
    for index, piece in enumerate(pieces := pieces_of(SSML.encode(), [3 * cut for cut in cuts]), 1):
        speakable.append(ledger.accept(piece, index == len(pieces)))
    assert ledger.characters == len(SSML) and any(speakable)
    effort, markup = ledger.effort, SSML.index("</sub>")
    assert effort.until(SSML.index("/>")) == effort.until(SSML.index("<break")) == sum(map(weight_of, "One "))
    assert effort.until(markup + len("</sub> ")) - effort.until(markup) == weight_of(" ")
    assert effort.characters == len(SSML) - len("</speak>")


def test_a_refused_piece_of_markup_leaves_the_text_as_it_was() -> None:
    ledger = TextLedger(200, markup=MarkupReader)
    ledger.accept(b"<speak>On", False)
    for piece in (b"e</p>", b"<audio/>", b"\xff", b" & "):
        with pytest.raises(InvalidInputError):
            ledger.accept(piece, False)
    assert not ledger.accept(b"<break/", False)
    ledger.accept(b"> two</speak>", True)
    assert ledger.ended and ledger.speakable_characters == ledger.characters

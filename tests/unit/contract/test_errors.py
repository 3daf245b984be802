"""Errors survive the wire: code, sentence, session and time are unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.contract.checks import SPEAKER_ID_PATTERN, SPEAKER_NAME_PATTERN
from bistream.contract.refusals import format_error, parse_error
from bistream.errors import ERRORS_BY_CODE, BistreamError, BusyError

SENTENCES = st.text(st.characters(exclude_characters="[]", exclude_categories=["Cs"]), min_size=1).map(lambda text: text.strip() or "x")


SESSIONS = st.none() | st.from_regex(r"[A-Za-z0-9_.:-]{1,20}", fullmatch=True)


@given(st.sampled_from(sorted(ERRORS_BY_CODE)), SENTENCES, SESSIONS, st.none() | st.integers(0, 9999).map(lambda tenths: tenths / 10))
def test_an_error_survives_the_wire(code: str, sentence: str, session_id: str | None, retry_after_s: float | None) -> None:
    error = parse_error(format_error(ERRORS_BY_CODE[code](sentence, session_id, retry_after_s)))
    assert (error.code, error.sentence, error.session_id, error.retry_after_s) == (code, sentence, session_id, retry_after_s)
    assert type(error) is ERRORS_BY_CODE[code]
    again = error.renewed("another")
    assert (again.session_id, again.retry_after_s) == ("another", retry_after_s)


def test_the_form_on_the_wire() -> None:
    assert (
        format_error(BusyError("Full; try again in 2.5 s.", "a", 2.5)) == "BUSY: Full; try again in 2.5 s. [session a; retry_after_s 2.5]"
    )
    old = parse_error("BUSY: Full; try again in 2.5 s. [session a]")
    assert (old.session_id, old.retry_after_s) == ("a", None)


def test_a_message_of_the_server_itself_stays_readable() -> None:
    error = parse_error("[request id: 7] unexpected inference input 'ZZ' for model 'cosyvoice2'")
    assert type(error) is BistreamError
    assert "unexpected inference input" in str(error)


def test_only_transient_errors_are_retryable() -> None:
    assert BusyError("x").retryable
    assert {code for code, error in ERRORS_BY_CODE.items() if error.retryable} == {"BUSY", "ENGINE_ERROR", "SHUTTING_DOWN"}


@pytest.mark.parametrize("speaker_id", ["", "a/b", "..", "x" * 65, "a b", "a\n"])
def test_speaker_ids_cannot_name_paths(speaker_id: str) -> None:
    assert SPEAKER_ID_PATTERN.match(speaker_id) is None
    assert SPEAKER_NAME_PATTERN.match(speaker_id) is None

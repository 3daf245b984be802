"""What a server says of the sessions that it has room for."""

from __future__ import annotations

import pytest

from bistream.contract.room import room_of


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({}, None),
        ({"max_sessions": "64"}, "has room for 64 sessions at a time"),
        ({"max_sessions": "64", "reserved_speech_s": "0.0"}, "has room for 64 sessions at a time"),
        (
            {"max_sessions": "9", "reserved_speech_s": "10.0"},
            "has room for 9 sessions at a time, and remembers at least 10 s of the speech of each",
        ),
    ],
)
def test_it_is_one_sentence_of_what_is_set(parameters: dict[str, str], sentence: str | None) -> None:
    assert room_of(parameters) == sentence

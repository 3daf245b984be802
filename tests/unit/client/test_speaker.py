"""How a voice agent's sessions begin."""

from __future__ import annotations

import pytest

from bistream.client.opening import START_ARGUMENTS
from bistream.client.speaker import Speaker


@pytest.mark.parametrize("lexicon", [{"Nguyen": "win"}, '{"Nguyen": "win"}'])
def test_a_speaker_is_the_arguments_of_a_start(lexicon: str | dict[str, str]) -> None:
    given = Speaker(speaker_id="anna", text_type="ssml", lexicon=lexicon).arguments()
    assert given.keys() <= START_ARGUMENTS
    assert (given["speaker_id"], given["text_type"], given["lexicon"], given["speed"]) == ("anna", "ssml", '{"Nguyen": "win"}', None)

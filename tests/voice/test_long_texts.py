"""Long texts are spoken to their end, word for word and nothing twice: a story word by word, an explanation in one piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest

from bistream.evaluation.texts import units_of
from bistream.local import LocalPipeline, VoiceChoice
from bistream.types import FinishReason, FloatArray, GenerationOptions
from tests.formats import SAMPLE_RATE
from tests.voice.judges import Judge
from tests.voice.speaking import VOICE, Spoken, VoiceUnderTest, together, words_with_blanks

MOST_WORD_ERRORS = 0.1  # 5 % on the mean of many texts
LEAST_S_A_CHARACTER, MOST_S_A_CHARACTER = 0.055, 0.095  # the teacher: 0.063
REPEATED_WORDS = 4
STORY = (
    "The old house stood at the end of a quiet road, and nobody had lived in it for many years. One morning in spring a young woman "
    "came up the hill with two bags and a small brown dog. She opened the gate, walked through the long grass, and looked at the "
    "windows for some time. Then she put the key into the door and went inside. The rooms were cold and full of dust, but the light "
    "that came in from the garden was soft and warm. She put down her bags, opened all the windows, and began to work. By the evening"
    " the kitchen was clean, and there was a fire in the stove. The dog slept in front of it as if he had always lived there."
)
EXPLANATION = (
    "A battery stores energy and gives it back when you need it. Inside it there are two different metals and a liquid or a paste "
    "between them. When you connect the two ends with a wire, small particles begin to move from one side to the other. We call this "
    "movement a current, and it can light a lamp or turn a motor.\n\n"
    "There are two main kinds of batteries. The first kind can be used only once, because the metal inside is slowly eaten away. The "
    "second kind can be charged again, because the change inside can be turned around."
)
DIALOGUE = (
    '"Good morning," said the baker. "You are early today." The boy put his basket on the table and smiled. "My mother needs bread '
    'for twelve people," he said. "We have guests from the city." "Twelve people!" cried the baker. "Then you will need at least six '
    'loaves, and perhaps a cake as well." The boy counted the coins in his hand. "I have enough for the bread," he said, "but not for'
    ' the cake."'
)


@dataclass(frozen=True)
class Form:
    text: str
    is_whole: bool


SHORT = [Form(STORY, False), Form(EXPLANATION, True)]
LONG = [Form(" ".join([STORY, EXPLANATION, DIALOGUE] * count), is_whole) for count in (1, 2) for is_whole in (False, True)]


def audio_of(pipeline: LocalPipeline, form: Form) -> FloatArray:
    pieces = [form.text] if form.is_whole else words_with_blanks(form.text)
    chunks = pipeline.stream(pieces, VoiceChoice(speaker_id=VOICE), GenerationOptions(seed=1), is_whole=form.is_whole)
    return np.concatenate([chunk.waveform for chunk in chunks])


def runs(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(REPEATED_WORDS)), strict=False))


@pytest.mark.parametrize("forms", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)], ids=["short", "long"])
def test_words_are_understood_and_none_is_spoken_twice(forms: list[Form], pipeline: LocalPipeline, judge: Judge, tmp_path: Path) -> None:
    waveforms = together(audio_of, repeat(pipeline), forms)
    for form, waveform, heard in zip(
        forms, waveforms, judge.hear(tmp_path / "long", [form.text for form in forms], waveforms), strict=True
    ):
        assert heard.errors <= MOST_WORD_ERRORS * heard.words, heard.text
        assert LEAST_S_A_CHARACTER <= len(waveform) / SAMPLE_RATE / len(form.text) <= MOST_S_A_CHARACTER
        assert not runs(units_of(heard.text)) - runs(units_of(form.text)) & runs(units_of(form.text)), heard.text


@pytest.fixture(scope="module")
def explained(voice: VoiceUnderTest) -> list[Spoken]:
    """By words, by characters, in one piece."""
    return together(voice.speak, (words_with_blanks(EXPLANATION), list(EXPLANATION), [EXPLANATION]))


def test_pieces_of_any_size_give_the_same_tokens(explained: list[Spoken]) -> None:
    by_words, by_characters, in_one = explained
    assert by_words.finish_reason is FinishReason.EOS
    assert by_characters == in_one == by_words


def test_a_text_that_stops_within_a_segment_goes_on_as_if_it_had_not(voice: VoiceUnderTest, explained: list[Spoken]) -> None:
    """In the first segment or in a later one. Its end comes when everything that can be spoken before has been."""
    stops = [round(share * len(EXPLANATION)) for share in (0.3, 0.7)]
    paused = together(lambda stop: voice.speak([EXPLANATION[:stop], EXPLANATION[stop:]], pauses=True), stops)
    assert paused == [explained[-1]] * 2

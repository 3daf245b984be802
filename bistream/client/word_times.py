"""When each word of a session's text is spoken, from the positions that came with its audio: estimates, as those are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bistream.client.exchange import Chunk

# A character of a script without spaces between words counts as one: Chinese, Japanese.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_TO_LAST_LETTER = re.compile(r".*\w", re.DOTALL)


def end_of(word: re.Match[str]) -> int:
    """Where its last letter or digit ends: the punctuation behind it is a pause. Of punctuation alone, where that ends."""
    spoken = _TO_LAST_LETTER.match(word.group())
    return word.end() if spoken is None else word.start() + spoken.end()


@dataclass(frozen=True)
class WordTime:
    """word: with the punctuation that follows it. begin_s, end_s: in the session's audio, see ``end_of``."""

    word: str
    begin_s: float
    end_s: float


def word_times(text: str, chunks: Iterable[Chunk], sample_rate: int) -> list[WordTime]:
    """The words of ``text``, all of the session's, that have begun by the end of ``chunks``, all since its first one.

    Between two positions the time is proportional to the characters. Empty for chunks of a server that tells no positions. sample_rate:
    of the client.
    """
    seconds, positions = [0.0], [0]
    for chunk in chunks:
        if chunk.text_position is None:
            return []
        seconds.append(seconds[-1] + chunk.waveform.size / sample_rate)
        positions.append(max(positions[-1], chunk.text_position))
    # Where the position stands still the last of the equal ones counts: what follows is spoken after it.
    ends = [index for index in range(len(positions)) if index + 1 == len(positions) or positions[index + 1] > positions[index]]
    found = []
    for match in WORD.finditer(text):
        if match.start() >= positions[-1]:
            break
        begin_s, end_s = np.interp((match.start(), end_of(match)), [positions[i] for i in ends], [seconds[i] for i in ends])
        found.append(WordTime(match.group(), float(begin_s), float(end_s)))
    return found

"""The two layouts of the language model as training rows: text ids and speech codes in, inputs and targets out. numpy only.

The same order as ``bistream.text2token.interleave``; a test compares both. Targets are rows of the head; ``IGNORED`` where a text follows.
"""

from __future__ import annotations

from collections.abc import Sequence

from bistream.families.cosyvoice2 import BLOCKS
from bistream.text2token.engine import TokenSpace

IGNORED = -100
FEWEST_SPEECH_PER_TEXT = 3.0  # upstream teaches the bi-stream layout only above this


def one_shot(space: TokenSpace, text: Sequence[int], codes: Sequence[int]) -> tuple[list[int], list[int]]:
    """``sos text task speech``; the last target is eos. Ids of ``space``, and a target for each."""
    eos = space.eos - space.speech_offset
    ids = [space.sos, *text, space.task, *(code + space.speech_offset for code in codes)]
    return ids, [IGNORED] * (1 + len(text)) + [*codes, eos]


def can_interleave(text: Sequence[int], codes: Sequence[int]) -> bool:
    return len(codes) > FEWEST_SPEECH_PER_TEXT * len(text) and len(codes) >= len(text) // BLOCKS.text_tokens * BLOCKS.speech_tokens


def interleaved(space: TokenSpace, text: Sequence[int], codes: Sequence[int]) -> tuple[list[int], list[int]]:
    """``sos [5 text][15 speech] ... [0-4 text] task speech``: the target after a block's speech is fill, the last one eos."""
    eos, fill = space.eos - space.speech_offset, space.fill - space.speech_offset
    ids, targets = [space.sos], [IGNORED]
    blocks = len(text) // BLOCKS.text_tokens
    for block in range(blocks):
        speech = codes[block * BLOCKS.speech_tokens : (block + 1) * BLOCKS.speech_tokens]
        ids += text[block * BLOCKS.text_tokens : (block + 1) * BLOCKS.text_tokens]
        targets += [IGNORED] * (BLOCKS.text_tokens - 1) + [speech[0]]
        ids += [code + space.speech_offset for code in speech]
        targets += [*speech[1:], fill]
    rest, speech = text[blocks * BLOCKS.text_tokens :], codes[blocks * BLOCKS.speech_tokens :]
    ids += [*rest, space.task, *(code + space.speech_offset for code in speech)]
    targets += [IGNORED] * len(rest) + [*speech, eos]
    return ids, targets

"""The two layouts of the language model as training rows: text ids and speech codes in, inputs and targets out; and which text is spoken.

The same order as ``bistream.text2token.interleave``; a test compares both. Targets are rows of the head; ``IGNORED`` where a text follows.

A language model of few steps learns to babble long before it finds out, by itself, that speech follows the text. So some heads are
guided (Tachibana et al. 2018): the attention of one should lie on the text token that is being spoken (``letters.py`` tells which), that
of another on the token after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bistream.families.cosyvoice2 import BLOCKS
from bistream.text2token.engine import TokenSpace

IGNORED = -100
GUIDED_LAYERS = (1, 2)
GUIDED_HEADS = (0, -1)  # on the text token that is spoken, on the next one
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


def aligned_places(spoken: NDArray[np.int64], text_tokens: int, is_interleaved: bool) -> NDArray[np.int64]:
    """spoken int64 [speech tokens]: a text token for each -> for each place of the row, int64 [L], the place of the text token of the
    speech token which that place predicts; ``IGNORED`` where it predicts none or that text comes later."""
    blocks = text_tokens // BLOCKS.text_tokens if is_interleaved else 0
    size, rest = BLOCKS.text_tokens + BLOCKS.speech_tokens, 1 + blocks * (BLOCKS.text_tokens + BLOCKS.speech_tokens)
    speech_rest = rest + text_tokens - blocks * BLOCKS.text_tokens + 1  # after the task id
    texts, codes = np.arange(text_tokens), np.arange(len(spoken))
    in_block = texts < blocks * BLOCKS.text_tokens
    text_places = np.where(
        in_block, 1 + texts // BLOCKS.text_tokens * size + texts % BLOCKS.text_tokens, rest + texts - blocks * BLOCKS.text_tokens
    )
    in_block = codes < blocks * BLOCKS.speech_tokens
    code_places = np.where(
        in_block,
        1 + codes // BLOCKS.speech_tokens * size + BLOCKS.text_tokens + codes % BLOCKS.speech_tokens,
        speech_rest + codes - blocks * BLOCKS.speech_tokens,
    )
    aligned = np.full(speech_rest + len(spoken) - blocks * BLOCKS.speech_tokens, IGNORED, np.int64)
    aligned[code_places - 1] = text_places[spoken]
    aligned[aligned > np.arange(len(aligned))] = IGNORED
    return aligned


def guidance_loss(query: Tensor, key: Tensor, aligned: Tensor) -> Tensor:
    """query, key [B, L, size] of one head, aligned int64 [B, L] -> cross-entropy of its attention against the aligned places."""
    length = query.shape[1]
    scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    return F.cross_entropy(scores.masked_fill(later, float("-inf")).float().flatten(0, 1), aligned.flatten(), ignore_index=IGNORED)

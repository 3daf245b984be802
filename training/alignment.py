"""Which text is being spoken at each position of a training row: so that some heads learn early to follow the text.

A language model of few steps learns to babble long before it finds out, by itself, that speech follows the text. So some heads are
guided (Tachibana et al. 2018): the attention of one should lie on the text token that is being spoken (``letters.py`` tells which), that
of another on the token after it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bistream.families.cosyvoice2 import BLOCKS
from training.layouts import IGNORED

GUIDED_LAYERS = (1, 2)
GUIDED_HEADS = (0, -1)  # on the text token that is spoken, on the next one


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

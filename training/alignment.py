"""Which text is being spoken at each position of a training row, roughly: so that one head learns early to follow the text.

A language model of few steps learns to babble long before it finds out, by itself, that speech follows the text. So some heads are
guided (Tachibana et al. 2018): their attention should lie on the text token that is being spoken. Where that is, follows from the weights
of ``orchestration/text_position.py``, with a mean error of 3 characters for the default voice, less than a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bistream.orchestration.text_position import weight_of
from bistream.rates import SPEECH_BLOCK_TOKENS, TEXT_BLOCK_TOKENS
from training.layouts import IGNORED

GUIDED_LAYERS = (1, 2)
GUIDED_HEAD = 0
SILENCE_BEFORE = 5  # speech tokens before the first sound of a sentence


def weight_of_token(piece: str) -> float:
    """How long a token is spoken, in Latin letters. Never nothing, so that every token has its place."""
    return 0.1 + sum(map(weight_of, piece))


def spoken_tokens(weights: Sequence[float], speech_tokens: int) -> NDArray[np.int64]:
    """weights [n] of a sentence's text tokens -> the one that is being spoken at each of ``speech_tokens``, int64 [speech_tokens]."""
    ends = np.cumsum(weights)
    silence = min(SILENCE_BEFORE, speech_tokens // 2)
    share = np.clip((np.arange(speech_tokens) + 0.5 - silence) / (speech_tokens - silence), 0.0, 1.0)
    spoken: NDArray[np.int64] = np.minimum(np.searchsorted(ends, share * ends[-1], side="right"), len(ends) - 1)
    return spoken


def aligned_places(spoken: NDArray[np.int64], text_tokens: int, is_interleaved: bool) -> NDArray[np.int64]:
    """spoken [speech tokens]: text token of each -> for each place of the row, int64 [L], the place of the text token that is spoken by the
    speech token which that place predicts; ``IGNORED`` where it predicts none or that text comes later."""
    blocks = text_tokens // TEXT_BLOCK_TOKENS if is_interleaved else 0
    size, rest = TEXT_BLOCK_TOKENS + SPEECH_BLOCK_TOKENS, 1 + blocks * (TEXT_BLOCK_TOKENS + SPEECH_BLOCK_TOKENS)
    speech_rest = rest + text_tokens - blocks * TEXT_BLOCK_TOKENS + 1  # after the task id
    texts, codes = np.arange(text_tokens), np.arange(len(spoken))
    in_block = texts < blocks * TEXT_BLOCK_TOKENS
    text_places = np.where(
        in_block, 1 + texts // TEXT_BLOCK_TOKENS * size + texts % TEXT_BLOCK_TOKENS, rest + texts - blocks * TEXT_BLOCK_TOKENS
    )
    in_block = codes < blocks * SPEECH_BLOCK_TOKENS
    code_places = np.where(
        in_block,
        1 + codes // SPEECH_BLOCK_TOKENS * size + TEXT_BLOCK_TOKENS + codes % SPEECH_BLOCK_TOKENS,
        speech_rest + codes - blocks * SPEECH_BLOCK_TOKENS,
    )
    aligned = np.full(speech_rest + len(spoken) - blocks * SPEECH_BLOCK_TOKENS, IGNORED, np.int64)
    aligned[code_places - 1] = text_places[spoken]
    aligned[aligned > np.arange(len(aligned))] = IGNORED
    return aligned


def guidance_loss(query: Tensor, key: Tensor, aligned: Tensor) -> Tensor:
    """query, key [B, L, size] of one head, aligned int64 [B, L] -> cross-entropy of its attention against the aligned places."""
    length = query.shape[1]
    scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    return F.cross_entropy(scores.masked_fill(later, float("-inf")).float().flatten(0, 1), aligned.flatten(), ignore_index=IGNORED)

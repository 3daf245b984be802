"""Which text is being spoken at each position of a training row, roughly: so that one head learns early to follow the text.

A language model of few steps learns to babble long before it finds out, by itself, that speech follows the text. So some heads are
guided (Tachibana et al. 2018): their attention should lie on the text token that is being spoken. Where that is, follows from the phones
spoken so far, as a share of all of the sentence, and the weights of ``orchestration/text_position.py``.
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
from training.phones import SILENCE

GUIDED_LAYERS = (1, 2)
GUIDED_HEAD = 0


def weight_of_token(piece: str) -> float:
    """How long a token is spoken, in Latin letters. Never nothing, so that every token has its place."""
    return 0.1 + sum(map(weight_of, piece))


def progress(phones: NDArray[np.uint8]) -> NDArray[np.float64]:
    """phones [n] of a sentence, one at each speech token -> the share of them that is spoken, 0 to 1, [n]. It stands still in pauses."""
    begins = (phones != SILENCE) & (phones != np.concatenate(([SILENCE], phones[:-1])))
    begun = np.cumsum(begins)
    share: NDArray[np.float64] = (begun - 0.5 * (phones != SILENCE)) / max(1, begun[-1])
    return share


def spoken_tokens(weights: Sequence[float], phones: NDArray[np.uint8]) -> NDArray[np.int64]:
    """weights [t] of a sentence's text tokens, phones [n], one at each speech token -> the text token that is being spoken, int64 [n]."""
    ends = np.cumsum(weights)
    spoken: NDArray[np.int64] = np.minimum(np.searchsorted(ends, progress(phones) * ends[-1], side="right"), len(ends) - 1)
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

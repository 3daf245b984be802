"""What one call of the network computes, decided on integers: spans of sequences, their grouping and their padded arrays.

No torch here: ``stage.FlowStage`` turns the arrays of ``pack`` into tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from bistream.token2mel.sizes import LOOKAHEAD_HISTORY_TOKENS
from bistream.types import FloatArray, VoicePrompt

MAX_GROUP_FRAMES = 32_768  # padded frames of one call; bounds its working memory
MIN_FILL = 0.6  # a span joins a group if it is at least this share of the group's longest


@dataclass(frozen=True)
class Span:
    """The part [start, end) of one sequence that a call computes.

    tokens: the sequence from the start of the prompt as far as known; after ``known`` tokens come zero vectors.
    context_pages: pages of the chunks left of ``start``, oldest first.
    keep_pages: one page per complete chunk of the span; ``SCRATCH_PAGE`` where its state is not kept.
    """

    tokens: Sequence[int]
    start: int
    end: int
    prompt: VoicePrompt
    context_pages: tuple[int, ...] = ()
    keep_pages: tuple[int, ...] = ()
    streaming: bool = True

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class PackedArrays:
    """Arrays of ``flow.FlowBatch`` and ``state.PageTables``; their shapes are explained there."""

    token_ids: NDArray[np.int64]
    present: NDArray[np.bool_]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    context_chunks: NDArray[np.int64]
    prompt_mel: FloatArray
    speaker: FloatArray
    context: NDArray[np.int64]
    last: NDArray[np.int64]
    keep: NDArray[np.int64]


def group_spans(spans: Sequence[Span], ratio: int, max_frames: int = MAX_GROUP_FRAMES) -> list[list[int]]:
    """Indices of spans that are computed together: the same attention mode, similar lengths, bounded size."""
    order = sorted(range(len(spans)), key=lambda index: (spans[index].streaming, -spans[index].length))
    groups: list[list[int]] = []
    for index in order:
        span = spans[index]
        if groups:
            longest = spans[groups[-1][0]]
            fits = (len(groups[-1]) + 1) * longest.length * ratio <= max_frames
            if longest.streaming == span.streaming and span.length >= MIN_FILL * longest.length and fits:
                groups[-1].append(index)
                continue
        groups.append([index])
    return groups


def pack(spans: Sequence[Span], *, chunk_tokens: int, lookahead: int, ratio: int, mel_bins: int) -> PackedArrays:
    """Padded arrays of a group of spans."""
    count = len(spans)
    new_tokens = max(span.length for span in spans)
    table_chunks = max(len(span.context_pages) for span in spans)
    width = LOOKAHEAD_HISTORY_TOKENS + new_tokens + lookahead
    token_ids = np.zeros((count, width), np.int64)
    present = np.zeros((count, width), np.bool_)
    prompt_mel = np.zeros((count, new_tokens * ratio, mel_bins), np.float32)
    context = np.full((count, table_chunks), ZERO_PAGE, np.int64)
    keep = np.full((count, new_tokens // chunk_tokens), SCRATCH_PAGE, np.int64)
    for row, span in enumerate(spans):
        first = max(0, span.start - LOOKAHEAD_HISTORY_TOKENS)
        end = min(len(span.tokens), span.end + lookahead)
        column = first - (span.start - LOOKAHEAD_HISTORY_TOKENS)
        token_ids[row, column : column + end - first] = span.tokens[first:end]
        present[row, column : column + end - first] = True
        mel = span.prompt.speech_feat[span.start * ratio : span.end * ratio]
        prompt_mel[row, : len(mel)] = mel
        context[row, table_chunks - len(span.context_pages) :] = span.context_pages
        keep[row, : len(span.keep_pages)] = span.keep_pages
    if np.all(keep == SCRATCH_PAGE):
        keep = keep[:, :0]
    return PackedArrays(
        token_ids=token_ids,
        present=present,
        starts=np.array([span.start for span in spans], np.int64),
        lengths=np.array([span.length for span in spans], np.int64),
        context_chunks=np.array([len(span.context_pages) for span in spans], np.int64),
        prompt_mel=prompt_mel,
        speaker=np.stack([span.prompt.speaker_embedding for span in spans]).astype(np.float32),
        context=context,
        last=np.array([span.context_pages[-1] if span.context_pages else ZERO_PAGE for span in spans], np.int64),
        keep=keep,
    )

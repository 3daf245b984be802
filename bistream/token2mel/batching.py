"""Plans a call of the network on integers: spans of sequences, their grouping and their padded arrays.

No torch here: ``runner.FlowRunner`` turns the arrays of ``pack`` into tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from bistream.token2mel.sizes import LOOKAHEAD_HISTORY_TOKENS
from bistream.types import FloatArray, VoicePrompt

MAX_GROUP_TOKENS = 32_768  # padded tokens of one call, stored context included: bounds its working memory (0.3 GB in 16 bit)
MIN_FILL = 0.6  # a span joins a group if it has at least this share of the longest span's length


@dataclass(frozen=True)
class Span:
    """The part [start, end) of one sequence that a call computes.

    tokens: all known tokens of the sequence, the prompt's first; positions after them are zero vectors.
    context_pages: pages of the chunks before ``start``, oldest first.
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
    """Arrays of ``flow.FlowBatch`` and ``pages.PageTables``; their shapes are documented there."""

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


def without_context(span: Span, chunk_tokens: int) -> Span:
    """The same span from the start of the sequence: earlier chunks are recomputed instead of read, and not kept again."""
    earlier = (SCRATCH_PAGE,) * (span.start // chunk_tokens)
    return replace(span, start=0, context_pages=(), keep_pages=(*earlier, *span.keep_pages) if span.keep_pages else ())


def group_spans(spans: Sequence[Span], chunk_tokens: int, min_fill: float = MIN_FILL) -> list[list[int]]:
    """Groups of spans to compute together, as indices: one attention mode, at least ``min_fill`` of the longest, bounded size."""
    order = sorted(range(len(spans)), key=lambda index: (spans[index].streaming, -spans[index].length))
    groups: list[list[int]] = []
    for index in order:
        if groups and _fits(spans[index], [spans[member] for member in groups[-1]], chunk_tokens, min_fill):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _fits(span: Span, group: Sequence[Span], chunk_tokens: int, min_fill: float) -> bool:
    """group: longest span first."""
    longest = group[0]
    if span.streaming != longest.streaming or span.length < min_fill * longest.length:
        return False
    chunks = max(len(member.context_pages) for member in (span, *group))
    return (len(group) + 1) * (longest.length + chunks * chunk_tokens) <= MAX_GROUP_TOKENS


@dataclass(frozen=True)
class Buckets:
    """Sizes to which a batch is rounded up where every new shape is expensive (recorded device graphs).

    Rows go to powers of two, new tokens and table chunks to multiples.
    """

    token_step: int = 5
    chunk_step: int = 4


@dataclass(frozen=True)
class BatchShape:
    """Padded sizes of one batch. keep_chunks: complete chunks of the new part that are written (0: nothing is kept)."""

    rows: int
    new_tokens: int
    table_chunks: int
    keep_chunks: int


def batch_shape(spans: Sequence[Span], chunk_tokens: int, buckets: Buckets | None) -> BatchShape:
    """The smallest shape that holds the spans, rounded up to buckets where given."""
    rows = len(spans)
    new_tokens = max(span.length for span in spans)
    table_chunks = max(len(span.context_pages) for span in spans)
    if buckets is not None:
        rows = 1 << (rows - 1).bit_length()
        new_tokens = _round_up(new_tokens, buckets.token_step)
        table_chunks = _round_up(table_chunks, buckets.chunk_step)
    keeps = any(page != SCRATCH_PAGE for span in spans for page in span.keep_pages)
    return BatchShape(rows, new_tokens, table_chunks, new_tokens // chunk_tokens if keeps else 0)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def pack(spans: Sequence[Span], shape: BatchShape, *, lookahead: int, ratio: int, mel_bins: int) -> PackedArrays:
    """Padded arrays of a group of spans. Padding rows have one absent token and write to the scratch page."""
    padded = shape.rows - len(spans)
    width = LOOKAHEAD_HISTORY_TOKENS + shape.new_tokens + lookahead
    token_ids = np.zeros((shape.rows, width), np.int64)
    present = np.zeros((shape.rows, width), np.bool_)
    prompt_mel = np.zeros((shape.rows, shape.new_tokens * ratio, mel_bins), np.float32)
    context = np.full((shape.rows, shape.table_chunks), ZERO_PAGE, np.int64)
    keep = np.full((shape.rows, shape.keep_chunks), SCRATCH_PAGE, np.int64)
    speaker = np.zeros((shape.rows, spans[0].prompt.speaker_embedding.shape[0]), np.float32)
    for row, span in enumerate(spans):
        first = max(0, span.start - LOOKAHEAD_HISTORY_TOKENS)
        end = min(len(span.tokens), span.end + lookahead)
        column = first - (span.start - LOOKAHEAD_HISTORY_TOKENS)
        token_ids[row, column : column + end - first] = span.tokens[first:end]
        present[row, column : column + end - first] = True
        mel = span.prompt.speech_feat[span.start * ratio : span.end * ratio]
        prompt_mel[row, : len(mel)] = mel
        context[row, shape.table_chunks - len(span.context_pages) :] = span.context_pages
        if shape.keep_chunks:
            keep[row, : len(span.keep_pages)] = span.keep_pages
        speaker[row] = span.prompt.speaker_embedding
    return PackedArrays(
        token_ids=token_ids,
        present=present,
        starts=np.array([span.start for span in spans] + [0] * padded, np.int64),
        lengths=np.array([span.length for span in spans] + [1] * padded, np.int64),
        context_chunks=np.array([len(span.context_pages) for span in spans] + [0] * padded, np.int64),
        prompt_mel=prompt_mel,
        speaker=speaker,
        context=context,
        last=np.array([(ZERO_PAGE, *span.context_pages)[-1] for span in spans] + [ZERO_PAGE] * padded, np.int64),
        keep=keep,
    )

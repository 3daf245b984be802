"""A batch of the flow whose kernels are launched one by one, on buffers and pages that a test fills and reads.

All host code that the tests of this folder need is imported here, except for the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import EstimatorConfig, FlowConfig, FlowEncoderConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.cuda.batch import BatchArrays, Bucket, ChunkItemField, RateArrays, batch_shapes, batch_size, views, widened_pages
from bistream.token2mel.cuda.batch_filling import fill
from bistream.token2mel.cuda.launches import CudaSolver
from bistream.token2mel.cuda.launches_few import _Source as Source
from bistream.token2mel.cuda.launches_many import _Half as ManyHalf
from bistream.token2mel.cuda.memory import FlowBuffers
from bistream.token2mel.cuda.tuning import FEW, MANY, FewTiles, tile_sizes
from bistream.token2mel.cuda.weights import EncoderWeights, pack_encoder
from bistream.token2mel.encoder import ConformerLayer
from bistream.token2mel.estimator import TransformerBlock, Unit
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.page_pool import FIRST_PAGE, SCRATCH_PAGE, ZERO_PAGE
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages
from bistream.token2mel.state_rows import StateRows
from bistream.token2mel.weights import build_network
from bistream.types import VoicePrompt
from tests.gpu.checks import BOUNDS, DEVICE, INTERPRETED, Draw, poison, poisoned, scales_of, settled
from tests.unit.token2mel.random_weights import random_state

__all__ = ["GUIDANCE_ROWS", "ChunkItemField", "ConformerLayer", "Source", "TransformerBlock", "WindowLinear"]

# Real widths, the only ones that the kernels support; fewer layers and solver steps
CONFIG = FlowConfig(
    encoder=FlowEncoderConfig(num_blocks=2, num_up_blocks=1), estimator=EstimatorConfig(n_blocks=2, num_mid_blocks=1), n_timesteps=2
)
KINDS = {  # one bucket for every tuning of the estimator
    "few64": (Bucket(64, 4), FEW[64]),
    "few128": (Bucket(128, 8), FEW[128]),
    "few256": (Bucket(256, 16), FEW[256]),
    "few384": (Bucket(320, 16), FEW[384]),
    "many": (Bucket(448, 16), MANY),
}
# New tokens and stored chunks of every session. "full": as many tokens as the bucket holds, with those lengths in turn
BATCHES: dict[str, tuple[tuple[int, int], ...]] = {
    "one token": ((1, 0),),
    "one tile": ((8, 3),),
    "one chunk": ((25, 5),),
    "ragged": ((16, 1), (15, 12), (1, 0), (26, 2)),
    "long": ((64, 30),),
    "full": ((33, 2), (1, 7), (50, 0), (25, 3), (26, 1), (15, 0), (51, 40), (32, 1)),
}
CASES = [(batch, torch.float16) for batch in BATCHES]
if not INTERPRETED:  # Triton's interpreter has no products of bfloat16
    CASES.append(("ragged", torch.bfloat16))
FEW_KINDS = tuple(kind for kind, (_, tuning) in KINDS.items() if tuning.few is not None)
FEW_CASES = [(kind, *case) for kind in FEW_KINDS for case in CASES]
STEP = 1  # solver step whose state is used
CHUNK = CONFIG.estimator.static_chunk_size
HEADS = CONFIG.estimator.num_heads


def same_bits(found: Tensor, expected: Tensor) -> bool:
    """Equal, and NaN where NaN is expected."""
    integers = {2: torch.int16, 4: torch.int32}[found.element_size()]
    return torch.equal(found.contiguous().view(integers), expected.contiguous().view(integers))


def copied(rows: StateRows) -> StateRows:
    return StateRows(rows.values.clone(), scales_of(rows).clone())


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """In float64."""
    return F.layer_norm(x.double(), (x.shape[-1],), norm.weight.double(), norm.bias.double(), norm.eps)


@dataclass(frozen=True)
class Session:
    """Rows of one session at one rate. stored: its pages, oldest first; kept: page of each complete new chunk that is kept."""

    first: int
    rows: int
    stored: tuple[int, ...]
    kept: dict[int, int]

    @property
    def last_page(self) -> int:
        return (ZERO_PAGE, *self.stored)[-1]


def _lengths(batch: str, bucket: Bucket) -> list[tuple[int, int]]:
    if batch != "full":
        return list(BATCHES[batch])
    found: list[tuple[int, int]] = []
    left = bucket.tokens
    for tokens, chunks in cycle(BATCHES[batch]):
        tokens = left if len(found) == bucket.sessions - 1 else min(tokens, left)
        found.append((tokens, chunks))
        left -= tokens
        if not left:
            return found
    raise AssertionError


def _spans(lengths: list[tuple[int, int]]) -> tuple[list[Span], int]:
    """Spans that keep every second complete chunk, and the number of pages."""
    prompt = VoicePrompt(
        "", np.zeros(0, np.int32), np.zeros((0, CONFIG.output_size), np.float32), np.zeros(CONFIG.spk_embed_dim, np.float32)
    )
    tokens_of_chunk = CONFIG.encoder.static_chunk_size
    page, spans = FIRST_PAGE, []
    for number, (tokens, chunks) in enumerate(lengths):
        complete = tokens // tokens_of_chunk
        context = tuple(range(page, page + chunks))[::-1]  # any order
        page += chunks + complete
        kept = tuple(SCRATCH_PAGE if (number + index) % 2 else page - 1 - index for index in range(complete))
        start = chunks * tokens_of_chunk
        spans.append(Span([0] * (start + tokens), start, start + tokens, prompt, context, kept))
    return spans, page


@cache
def flow_network(dtype: torch.dtype) -> FlowNetwork:
    return build_network(random_state(CONFIG), CONFIG, DEVICE, dtype)


@cache
def encoder_weights(dtype: torch.dtype) -> EncoderWeights:
    return pack_encoder(flow_network(dtype).encoder, MAX_FRAMES)


class FlowBench:
    """One batch, its solver, and poison in all buffers and pages (but for the page of zeros)."""

    def __init__(self, kind: str, batch: str, dtype: torch.dtype = torch.float16, left: int = 0) -> None:
        bucket, self.tuning = KINDS[kind]
        self.bucket, self.dtype, self.left = bucket, dtype, left
        self.network = flow_network(dtype)
        self.bound = BOUNDS[dtype]
        self.spans, pages = _spans(_lengths(batch, bucket))
        older, older_pages = _spans([(bucket.tokens // bucket.sessions, 0)] * bucket.sessions)
        self.pages = FlowPages(CONFIG, max(pages, older_pages), dtype, DEVICE)
        for tensor, page in self._stores():
            poison(tensor)
            tensor.select(page, ZERO_PAGE).zero_()
        self.frames = bucket.tokens * CONFIG.token_mel_ratio
        few_rows = GUIDANCE_ROWS * self.frames if self.tuning.few is not None else 0
        split_rows = few_rows * self.few.key_splits if few_rows else 0
        read = widened_pages(bucket, CONFIG, self.pages.total)
        self.buffers = FlowBuffers(CONFIG, self.frames, few_rows, split_rows, read, dtype, DEVICE)
        poison(*(value for value in vars(self.buffers).values() if isinstance(value, Tensor)))
        self.arrays = self._arrays(older)
        self.free_velocities = torch.zeros(1, CONFIG.output_size, device=DEVICE)
        self.solver = self._solver()
        self.tail_width = self.pages.tail.shape[-1]

    def _stores(self) -> Iterator[tuple[Tensor, int]]:
        """The memory that holds pages, and its page dimension."""
        pages = self.pages
        yield from (
            (pages.context.values, 3),
            (scales_of(pages.context), 3),
            (pages.tail, 2),
            (pages.token_keys_values, 1),
            (pages.frame_keys_values, 1),
            (pages.upsample_tail, 0),
        )

    def _arrays(self, older: list[Span]) -> BatchArrays[Tensor]:
        """The batch on the device. Rows of an older, full batch follow its own, as they would in the product."""
        sizes = tile_sizes(self.tuning)
        shapes = batch_shapes(self.bucket, sizes, CONFIG, self.pages.total)
        host = views(np.zeros(batch_size(shapes), np.int32), shapes)
        fill(host, older, sizes, CONFIG, self.left)
        fill(host, self.spans, sizes, CONFIG, self.left)
        return host.map(lambda array: torch.from_numpy(array).to(DEVICE))

    def _solver(self) -> CudaSolver:
        mel = torch.zeros(self.frames, CONFIG.output_size, device=DEVICE)
        speakers = torch.zeros(self.bucket.sessions, CONFIG.spk_embed_dim, device=DEVICE)
        return CudaSolver(
            self.network, encoder_weights(self.dtype), self.pages, self.buffers, self.arrays, mel, speakers, self.bucket, self.tuning,
            self.left, self.free_velocities,
        )  # fmt: skip

    @property
    def few(self) -> FewTiles:
        """Tiles of a bucket of few rows."""
        assert self.tuning.few is not None
        return self.tuning.few

    @property
    def live(self) -> int:
        """Frames of this batch."""
        return sum(span.length for span in self.spans) * CONFIG.token_mel_ratio

    def at_rate(self, ratio: int) -> RateArrays[Tensor]:
        """ratio: rows per token."""
        return self.arrays.tokens if ratio == 1 else self.arrays.frames

    def sessions(self, ratio: int) -> list[Session]:
        """ratio: rows per token."""
        found, first = [], 0
        for span in self.spans:
            kept = {index: page for index, page in enumerate(span.keep_pages) if page != SCRATCH_PAGE}
            found.append(Session(first, span.length * ratio, span.context_pages, kept))
            first += span.length * ratio
        return found

    def outside(self, tensor: Tensor, half: int, rows: int) -> Tensor:
        """Everything in a buffer of both halves but the first ``rows`` rows of this half."""
        begin = half * self.frames
        return torch.cat([tensor[:begin].flatten(), tensor[begin + rows :].flatten()])

    def half(self, number: int, column: int = 0, block: int = 0) -> Any:
        """The launches of a guidance half, in the middle of ``STEP``, starting at this column of the tails and this transformer block."""
        half = self.solver.estimator._halves[number]
        half._step, half._tail_column, half._block = STEP, column, block
        if isinstance(half, ManyHalf):
            half._is_alone = False
        return half

    def unit(self, number: int) -> Unit:
        unit = self.network.matching.estimator.units[number]
        assert isinstance(unit, Unit)
        return unit

    def block(self, number: int) -> TransformerBlock:
        block = self.unit(number // 2).blocks[number % 2]
        assert isinstance(block, TransformerBlock)
        return block

    def rows(self, draw: Draw, target: Tensor, count: int | None = None) -> Tensor:
        """Random numbers in the first ``count`` rows (the live frames) of a buffer; the others stay as they are. Returns these rows."""
        count = self.live if count is None else count
        target[:count] = draw.normal(count, *target.shape[1:], dtype=target.dtype)
        return target[:count]

    def store(self, draw: Draw, memory: Tensor, ratio: int) -> None:
        """Random numbers in the pages [pages, ...] of all stored chunks."""
        for session in self.sessions(ratio):
            for page in session.stored:
                memory[page] = draw.normal(*memory.shape[1:], dtype=memory.dtype)

    def read_pages(self) -> Tensor:
        """Those that the batch reads, each once."""
        return self.arrays.widened_page[: int(self.arrays.widened)].long()

    def store_context(self, draw: Draw, block: int, half: int) -> Tensor:
        """Random rows in the pages of all stored chunks of this block, in ``STEP``; what they are, [pages, CHUNK, width], else NaN."""
        stored, read = self.pages.context[STEP, block, half], self.read_pages()
        stored.write(0, read, draw.normal(len(read), *stored.values.shape[1:]))
        memory = poisoned(*stored.values.shape, dtype=self.dtype)
        memory[read] = stored.read(0, read).to(self.dtype)
        return memory

    def written(self, tile: int, live: int | None = None) -> int:
        """Rows of all tiles with live rows: a kernel may leave anything in the padding rows of those."""
        live = self.live if live is None else live
        return -(-live // tile) * tile


def launch(method: Callable[..., None], *arguments: Any) -> None:
    with settled():
        method(*arguments)


def visible(session: Session, chunk: int, left: int) -> tuple[Tensor, Tensor]:
    """Which keys a row sees (its own chunk and ``left`` chunks before it; 0: all), and the chunk of each key, counted from the
    first that the row sees. Each [rows, keys]."""
    stored = len(session.stored)
    key = torch.arange(stored * chunk + session.rows, device=DEVICE) // chunk
    own = stored + torch.arange(session.rows, device=DEVICE)[:, None] // chunk
    first = (own - left).clamp(min=0) if left else torch.zeros_like(own)
    return (key <= own) & (key >= first), key - first


def attend(bench: FlowBench, memory: Tensor, query: Tensor, normed: Tensor, split: int = 0, splits: int = 1) -> tuple[Tensor, Tensor]:
    """softmax(query . X / 8) X over every ``splits``-th visible chunk, and log2 of the softmax's sum; of all live rows, float64.

    memory: [pages, CHUNK, width]; query: [rows, HEADS, width]; normed: [rows, width]. Where no chunk is left: NaN and -inf.
    """
    outs, sums = [], []
    for session in bench.sessions(CONFIG.token_mel_ratio):
        new = slice(session.first, session.first + session.rows)
        keys = torch.cat([memory[list(session.stored)].flatten(0, 1), normed[new]]).double()
        seen, number = visible(session, CHUNK, bench.left)
        scores = torch.einsum("fhw,kw->fhk", query[new].double(), keys) / CONFIG.estimator.attention_head_dim**0.5
        scores = scores.masked_fill(~(seen & (number % splits == split))[:, None], -torch.inf)
        outs.append(torch.softmax(scores, dim=-1) @ keys)
        sums.append(torch.logsumexp(scores, dim=-1) / np.log(2.0))
    return torch.cat(outs), torch.cat(sums)


def by_head(weight: Tensor) -> Tensor:
    """A projection [HEADS * size, width] as float64 [HEADS, size, width]."""
    return torch.unflatten(weight.double(), 0, (HEADS, -1))


def folded_query(block: TransformerBlock, normed: Tensor) -> Tensor:
    """float64 [rows, HEADS, width]: the query of each head times its key projection."""
    inner = block.to_query.weight.shape[0]
    query = torch.einsum("fw,hdw->fhd", normed.double(), by_head(block.to_query.weight))
    return torch.einsum("fhd,hdw->fhw", query, by_head(block.to_keys_values.weight[:inner]))


def values_of(block: TransformerBlock, attended: Tensor) -> Tensor:
    """float64 [rows, HEADS, size] of attended [rows, HEADS, width]."""
    inner = block.to_query.weight.shape[0]
    return torch.einsum("fhw,hdw->fhd", attended.double(), by_head(block.to_keys_values.weight[inner:]))


def feed_forward(block: TransformerBlock, x: Tensor) -> Tensor:
    """The residual that the block's feed-forward adds to x, float64."""
    hidden = layer_norm(x, block.norm_feed_forward) @ block.linear_in.weight.double().T + block.linear_in.bias.double()
    return F.gelu(hidden) @ block.linear_out.weight.double().T + block.linear_out.bias.double()


def convolve(conv: WindowLinear, rows: Tensor, tail: Tensor, sessions: list[Session]) -> Tensor:
    """float64 [rows, out] of packed rows [rows, channels]; tail: [pages, 2, channels], the rows before a session's own."""
    outs = []
    for session in sessions:
        given = torch.cat([tail[session.last_page].double(), rows[session.first : session.first + session.rows].double()])
        windows = given.unfold(0, conv.weight.shape[1], 1).transpose(1, 2).flatten(1)
        outs.append(windows @ conv.weight.double().flatten(1).T + conv.bias.double())
    return torch.cat(outs)


def kept(before: Tensor, rows: Tensor, sessions: list[Session], chunk: int) -> Tensor:
    """Memory [pages, n, width] after the last n rows of every kept chunk went to their page."""
    expected, count = before.clone(), before.shape[1]
    for session in sessions:
        for index, page in session.kept.items():
            end = session.first + (index + 1) * chunk
            expected[page] = rows[end - count : end].to(before.dtype)
    return expected


def kept_rows(before: StateRows, rows: Tensor, sessions: list[Session]) -> StateRows:
    """The same of memory that stores integers, with the rows of a chunk."""
    expected = copied(before)
    for session in sessions:
        for index, page in session.kept.items():
            begin = session.first + index * CHUNK
            expected.write(0, torch.tensor([page], device=DEVICE), rows[begin : begin + CHUNK][None])
    return expected


def encoder_layer(bench: FlowBench, ratio: int) -> ConformerLayer:
    """The last layer at token rate (ratio 1), or the first one at frame rate."""
    encoder = bench.network.encoder
    layer = encoder.token_layers[-1] if ratio == 1 else encoder.frame_layers[0]
    assert isinstance(layer, ConformerLayer)
    return layer


def encoder_memory(bench: FlowBench, ratio: int) -> tuple[Tensor, int]:
    """Keys and values that this layer keeps, [pages, chunk, 2 * width], and its number among all layers."""
    layers = CONFIG.encoder.num_blocks
    return (bench.pages.token_keys_values[-1], layers - 1) if ratio == 1 else (bench.pages.frame_keys_values[0], layers)

"""Flow encoder: speech token vectors at 25 Hz in, features at 50 Hz out (an upsampling conformer without convolution module).

Called by ``flow.FlowNetwork`` once per hop. Attention uses relative positions (Transformer-XL, https://arxiv.org/abs/1901.02860,
section 3.3), so a stored key needs no update when the sequence grows. ``steps`` of a module is its ``forward`` with pauses, as in
``estimator``.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import FlowConfig
from bistream.gpu.steps import Steps, finish
from bistream.token2mel.layers import WindowLinear, bias_rows, join_heads, join_tiles, query_tiles, split_heads
from bistream.token2mel.lookahead import Lookahead
from bistream.token2mel.memory import EncoderMemory
from bistream.token2mel.sizes import UPSAMPLE_HISTORY_TOKENS

LAYER_NORM_EPS = 1e-12  # inside the conformer layers
_FIRST_POSITION_TABLE = 512  # distances projected at first; the table doubles when a sequence outgrows it


class InputEmbedding(nn.Module):
    """Linear, LayerNorm, times sqrt(width)."""

    def __init__(self, in_size: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_size, width)
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.scale = math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.linear(x))
        return normed * self.scale


class RelativeAttention(nn.Module):
    """Multi-head self-attention with relative positions and content and position biases u and v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        self.to_positions = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.empty(heads, width // heads))
        self.position_bias = nn.Parameter(torch.empty(heads, width // heads))
        self.positions = torch.empty(0)  # [heads, size, 2 * limit - 1] projected table, distances descending

    def project_positions(self, table: Tensor) -> None:
        """table: [2 * limit - 1, width], sinusoids of distances limit - 1 ... -(limit - 1)."""
        self.positions = split_heads(self.to_positions(table)[None], self.heads)[0].transpose(1, 2).contiguous()

    def steps(self, x: Tensor, bias: Tensor | None, memory: EncoderMemory, max_scores: int | None) -> Steps[Tensor]:
        """x: [S, T, width] normalised; bias: [S, 1, T, K] or None. Returns [S, T, width]."""
        width, frames = x.shape[-1], x.shape[1]
        query, keys_values = self.to_qkv(x).split([width, 2 * width], dim=-1)
        key, value = memory.extend_attention(keys_values).chunk(2, dim=-1)
        query, key, value = (split_heads(item, self.heads) for item in (query, key, value))
        parts = []
        for rows in query_tiles(frames, key.shape[2], max_scores):
            parts.append(self._attend(query[:, :, rows], key, value, bias_rows(bias, rows), frames - rows.stop))
            yield
        return join_tiles(parts)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, later: int) -> Tensor:
        """query: [S, heads, T, size], followed by ``later`` frames of the sequence."""
        scale = 1.0 / math.sqrt(query.shape[-1])
        scores = self._position_scores(query + self.position_bias[:, None], key.shape[2], later) * scale
        scores = scores if bias is None else scores + bias
        out = F.scaled_dot_product_attention(query + self.content_bias[:, None], key, value, attn_mask=scores, scale=scale)
        result: Tensor = self.to_out(join_heads(out))
        return result

    def _position_scores(self, query: Tensor, keys: int, later: int) -> Tensor:
        """query: [S, heads, T, size]; queries are the last T of ``keys`` - ``later`` positions. Returns [S, heads, T, keys].

        Entry (i, j) needs distance (keys - later - T + i) - j. With distances keys - later - 1 ... -(T + later - 1) as columns that
        is column T - 1 - i + j, so the result is a strided view: each row starts one column earlier than the row before it.
        """
        sessions, heads, frames, _ = query.shape
        limit = (self.positions.shape[-1] + 1) // 2
        first = limit - keys + later
        columns = keys + frames - 1
        by_distance = torch.matmul(query, self.positions[:, :, first : first + columns]).contiguous()  # [S, heads, T, columns]
        shape = (sessions, heads, frames, keys)
        strides = (heads * frames * columns, frames * columns, columns - 1, 1)
        scores: Tensor = by_distance.as_strided(shape, strides, frames - 1)
        return scores


class ConformerLayer(nn.Module):
    """Pre-norm attention and feed-forward (SiLU)."""

    def __init__(self, width: int, heads: int, linear_units: int) -> None:
        super().__init__()
        self.attention = RelativeAttention(width, heads)
        self.linear_in = nn.Linear(width, linear_units)
        self.linear_out = nn.Linear(linear_units, width)
        self.norm_attention = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.norm_feed_forward = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    def steps(self, x: Tensor, bias: Tensor | None, memory: EncoderMemory, max_scores: int | None) -> Steps[Tensor]:
        x = x + (yield from self.attention.steps(self.norm_attention(x), bias, memory, max_scores))
        parts = []
        for rows in query_tiles(x.shape[1], x.shape[1], max_scores):
            part = x[:, rows]
            parts.append(part + self.linear_out(F.silu(self.linear_in(self.norm_feed_forward(part)))))
            yield
        return join_tiles(parts)


class FlowEncoder(nn.Module):
    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        sizes = config.encoder
        width = sizes.output_size
        self.ratio = config.token_mel_ratio
        self.embed = InputEmbedding(sizes.input_size, width)
        self.lookahead = Lookahead(width, config.pre_lookahead_len)
        self.token_layers = _layers(sizes.num_blocks, width, sizes.attention_heads, sizes.linear_units)
        self.upsample = WindowLinear(width, width, UPSAMPLE_HISTORY_TOKENS * self.ratio + 1)
        self.frame_embed = InputEmbedding(width, width)
        self.frame_layers = _layers(sizes.num_up_blocks, width, sizes.attention_heads, sizes.linear_units)
        self.norm = nn.LayerNorm(width, eps=1e-5)

    def forward(
        self,
        vectors: Tensor,
        present: Tensor,
        starts: Tensor,
        token_bias: Tensor,
        frame_bias: Tensor,
        memory: EncoderMemory,
    ) -> Tensor:
        """Encode the new tokens.

        vectors: [S, 2 + T + lookahead, input_size], token vectors with two tokens of history and the lookahead.
        present: bool, the same [S, 2 + T + lookahead]; where false, the vector *after the embedding* is zero.
        starts: int64 [S], position of the first new token in its sequence (prompt included).
        token_bias, frame_bias: [S, 1, T, K] and [S, 1, ratio * T, ratio * K].
        Returns [S, ratio * T, width].
        """
        return finish(self.steps(vectors, present, starts, (token_bias, frame_bias), memory))

    def steps(
        self,
        vectors: Tensor,
        present: Tensor,
        starts: Tensor,
        biases: tuple[Tensor, Tensor] | None,
        memory: EncoderMemory,
        max_scores: int | None = None,
    ) -> Steps[Tensor]:
        """``forward`` with pauses. biases None: every token and frame sees all others, and there is no stored state."""
        x = self.embed(vectors) * present[:, :, None]
        x = self.lookahead(x, starts)
        token_bias, frame_bias = (None, None) if biases is None else biases
        yield from self._grow_positions(self.token_layers, x.shape[1] if token_bias is None else token_bias.shape[-1])
        for layer in _conformers(self.token_layers):
            x = yield from layer.steps(x, token_bias, memory, max_scores)
        x = memory.extend_upsample(x).repeat_interleave(self.ratio, dim=1)
        x = self.frame_embed(self.upsample(x))
        yield from self._grow_positions(self.frame_layers, x.shape[1] if frame_bias is None else frame_bias.shape[-1])
        for layer in _conformers(self.frame_layers):
            x = yield from layer.steps(x, frame_bias, memory, max_scores)
        out: Tensor = self.norm(x)
        return out

    def _grow_positions(self, layers: nn.ModuleList, keys: int) -> Steps[None]:
        """Extend the position tables to at least ``keys`` distances. They are cached: a hop in steady state projects nothing."""
        for layer in _conformers(layers):
            limit = (layer.attention.positions.shape[-1] + 1) // 2
            if limit >= keys:
                continue
            limit = max(_FIRST_POSITION_TABLE, 1 << (keys - 1).bit_length())
            weight = layer.attention.to_positions.weight
            layer.attention.project_positions(position_table(limit, weight.shape[1]).to(weight))
            yield


def _conformers(layers: nn.ModuleList) -> list[ConformerLayer]:
    return [layer for layer in layers if isinstance(layer, ConformerLayer)]


def _layers(count: int, width: int, heads: int, linear_units: int) -> nn.ModuleList:
    return nn.ModuleList(ConformerLayer(width, heads, linear_units) for _ in range(count))


@cache
def position_table(limit: int, width: int) -> Tensor:
    """Sinusoids [2 * limit - 1, width] of the distances limit - 1 ... -(limit - 1), positive to the left; float32.

    Even columns sine, odd columns cosine, of distance * 10000 ** (-column / width).
    """
    with torch.inference_mode(False):  # kept for all callers, of which some compute gradients
        distance = torch.arange(limit - 1, -limit, -1, dtype=torch.float32)[:, None]
        rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * -(math.log(10000.0) / width))
        table = torch.empty(2 * limit - 1, width)
        table[:, 0::2] = torch.sin(distance * rate)
        table[:, 1::2] = torch.cos(distance * rate)
    return table

"""Flow-matching estimator of CosyVoice3: a stack of transformer blocks whose norms are modulated by the time (DiT, AdaLN-Zero).

Only the two position convolutions, which look left, and (masked) attention mix frames; everything else is per frame. Therefore stored
state is exact, as that of ``token2mel.estimator``. The residual stream, the norms and the solver are float32 whatever the dtype of the
weights: activations reach 1e3.

Positions are the reference's: the rotation is applied to queries and keys before they are split into heads, to as many channels as one
head has. So head 0 alone knows positions; the weights were trained with that.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import DitConfig
from bistream.gpu.steps import Steps, finish
from bistream.token2mel.layers import bias_rows, join_heads, join_tiles, query_tiles, split_heads
from bistream.token2mel.memory import StepMemory
from bistream.token2mel.sizes import DIT_CONV_GROUPS
from bistream.token2mel.state_rows import StateRows

CONV_KERNEL = 31  # of the position convolutions
CONV_HISTORY_FRAMES = CONV_KERNEL - 1
POSITION_CONVS = 2
NORM_EPSILON = 1e-6
ROTARY_BASE = 10000.0
BLOCK_VECTORS, END_VECTORS = 6, 2  # that time gives a block (shift, scale, gate; twice), and the end (scale, shift)


def modulation_size(config: DitConfig) -> int:
    """Numbers that one solver step gives the network."""
    return (BLOCK_VECTORS * config.depth + END_VECTORS) * config.dim


def rotation(first_frames: Tensor, frames: int, head_size: int) -> Tensor:
    """Angles of the rotation, float32 [S, frames, head_size / 2], of the frames from ``first_frames`` (int64 [S]) on.

    Frames are counted from the start of the prompt. Adjacent channels form a pair: (0, 1), (2, 3) ...
    """
    rates = ROTARY_BASE ** -(torch.arange(0, head_size, 2, dtype=torch.float32, device=first_frames.device) / head_size)
    positions = first_frames[:, None] + torch.arange(frames, device=first_frames.device)
    return positions[:, :, None].float() * rates


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """x: [B, T, dim]; angles: [B, T, n]. Rotates the first 2 n channels, in float32."""
    width = 2 * angles.shape[-1]
    even, odd = x[..., 0:width:2].float(), x[..., 1:width:2].float()
    cosine, sine = angles.cos(), angles.sin()
    rotated = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], dim=-1).flatten(-2)
    return torch.cat([rotated.to(x.dtype), x[..., width:]], dim=-1)


def modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """LayerNorm without weights, then scale and shift; float32."""
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON) * (1 + scale) + shift


class PositionConv(nn.Module):
    """Grouped convolution that looks left, then Mish."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width // DIT_CONV_GROUPS, CONV_KERNEL))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, memory: StepMemory) -> Tensor:  # [B, T, width]
        extended = memory.extend_conv(x).transpose(1, 2)
        return F.mish(F.conv1d(extended, self.weight, self.bias, groups=DIT_CONV_GROUPS)).transpose(1, 2)


class InputEmbedding(nn.Module):
    """Mel, prompt mel, mu and speaker, stacked in this order, to the width of the blocks, plus what the position convolutions add."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.projection = nn.Linear(2 * config.mel_dim + config.mu_dim + config.spk_dim, config.dim)
        self.convs = nn.ModuleList(PositionConv(config.dim) for _ in range(POSITION_CONVS))

    def forward(self, inputs: Tensor, memory: StepMemory) -> Tensor:
        """[B, T, channels] -> float32 [B, T, dim]."""
        projected = self.projection(inputs)
        positioned = projected
        for conv in self.convs:
            positioned = conv(positioned, memory)
        total: Tensor = projected.float() + positioned.float()
        return total


class DitBlock(nn.Module):
    """Attention and feed-forward (GELU in its tanh form), each between modulated norm and gate.

    context_weight: what stored rows are projected with, ``to_keys_values.weight`` in as many bits as they have; set with the weights.
    """

    context_weight: StateRows

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        inner = config.heads * config.dim_head
        self.heads, self.head_size = config.heads, config.dim_head
        self.to_query = nn.Linear(config.dim, inner)
        self.to_keys_values = nn.Linear(config.dim, 2 * inner)
        self.to_out = nn.Linear(inner, config.dim)
        self.linear_in = nn.Linear(config.dim, config.ff_mult * config.dim)
        self.linear_out = nn.Linear(config.ff_mult * config.dim, config.dim)

    def steps(
        self, x: Tensor, vectors: Tensor, angles: Tensor, bias: Tensor | None, memory: StepMemory, max_scores: int | None
    ) -> Steps[Tensor]:
        """x: float32 [B, T, dim]; vectors: float32 [6, dim]; angles: [B, K, n]; bias: [B, 1, T, K] or None."""
        shift, scale, gate, shift_ff, scale_ff, gate_ff = vectors.unbind(0)
        normed = modulated(x, scale, shift).to(self.to_out.weight.dtype)
        key, value = self._keys_values(normed, memory).chunk(2, dim=-1)
        key, value = split_heads(rotate(key, angles), self.heads), split_heads(value, self.heads)
        new_angles = angles[:, angles.shape[1] - x.shape[1] :]
        parts = []
        for rows in query_tiles(x.shape[1], key.shape[2], max_scores):
            query = split_heads(rotate(self.to_query(normed[:, rows]), new_angles[:, rows]), self.heads)
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias_rows(bias, rows))
            part = x[:, rows] + gate * self.to_out(join_heads(attended)).float()
            hidden = F.gelu(self.linear_in(modulated(part, scale_ff, shift_ff).to(normed.dtype)), approximate="tanh")
            parts.append(part + gate_ff * self.linear_out(hidden).float())
            yield
        return join_tiles(parts)

    def _keys_values(self, x: Tensor, memory: StepMemory) -> Tensor:
        """[B, T, dim] -> [B, K, 2 * inner], those of the context first."""
        rows, linear = memory.extend_attention(x), self.to_keys_values
        if self.context_weight.scales is None or rows.shape[1] == x.shape[1]:
            return linear(rows)  # type: ignore[no-any-return]
        context = F.linear(rows[:, : rows.shape[1] - x.shape[1]], self.context_weight.numbers().to(x.dtype), linear.bias)
        return torch.cat([context, linear(x)], dim=1)


class Dit(nn.Module):
    """The network without its time embedding, whose few values are computed once (``modulation.Modulation``)."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.config = config
        self.input = InputEmbedding(config)
        self.blocks = nn.ModuleList(DitBlock(config) for _ in range(config.depth))
        self.projection = nn.Linear(config.dim, config.mel_dim)

    def forward(self, inputs: Tensor, modulation: Tensor, first_frames: Tensor, bias: Tensor | None, memory: StepMemory) -> Tensor:
        """One evaluation without a pause, as ``steps``."""
        return finish(self.steps(inputs, modulation, first_frames, bias, memory))

    def steps(
        self,
        inputs: Tensor,
        modulation: Tensor,
        first_frames: Tensor,
        bias: Tensor | None,
        memory: StepMemory,
        max_scores: int | None = None,
    ) -> Steps[Tensor]:
        """One evaluation.

        inputs: [B, T, channels]: mel, prompt mel, mu, speaker stacked in this order. modulation: float32 [``modulation_size``].
        first_frames: int64 [B], absolute frame of the first new frame. bias: [B, 1, T, K]; None: every frame sees all others.
        Returns float32 [B, T, bins].
        """
        config = self.config
        block_vectors, end = modulation[: -END_VECTORS * config.dim], modulation[-END_VECTORS * config.dim :]
        keys = inputs.shape[1] if bias is None else bias.shape[-1]
        angles = rotation(first_frames - (keys - inputs.shape[1]), keys, config.dim_head)
        x = self.input(inputs, memory)
        for block, vectors in zip(self.blocks, block_vectors.view(config.depth, BLOCK_VECTORS, config.dim), strict=True):
            assert isinstance(block, DitBlock)
            x = yield from block.steps(x, vectors, angles, bias, memory, max_scores)
        scale, shift = end.chunk(2)
        out: Tensor = self.projection(modulated(x, scale, shift).to(inputs.dtype)).float()
        memory.end_step()
        return out

"""Flow-matching estimator: the noisy mel, its conditions and the time in, the velocity of the mel out.

A U-Net of one resolution: one unit down, the mid units, one unit up that also reads the first unit's output, a final block.
A unit is a residual block of causal convolutions, conditioned on time, and transformer blocks without positions.
Only causal convolutions and (masked) attention mix frames, and no norm runs over time: therefore stored state is exact.
Called by ``flow_matching.FlowMatching`` once per solver step. ``steps`` of a module is its ``forward`` with pauses: in every
transformer block, and within a block where more than ``max_scores`` attention scores per head are due.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import EstimatorConfig
from bistream.gpu.steps import Steps, finish
from bistream.token2mel.layers import WindowLinear, bias_rows, join_heads, join_tiles, query_tiles, split_heads
from bistream.token2mel.memory import StepMemory
from bistream.token2mel.sizes import CONV_HISTORY_FRAMES

_KERNEL = CONV_HISTORY_FRAMES + 1
FEED_FORWARD_RATIO = 4  # of the transformer blocks
TIME_WIDTH_RATIO = 4  # width of the time embedding over the unit width
_TIME_SCALE = 1000.0


class ConvBlock(nn.Module):
    """Causal convolution of kernel 3, LayerNorm over channels, Mish."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.conv = WindowLinear(in_channels, width, _KERNEL)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: StepMemory) -> Tensor:
        return F.mish(self.norm(self.conv(memory.extend_conv(x))))


class ResidualBlock(nn.Module):
    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.time_projection = nn.Linear(TIME_WIDTH_RATIO * width, width)
        self.block1 = ConvBlock(in_channels, width)
        self.block2 = ConvBlock(width, width)
        self.shortcut = WindowLinear(in_channels, width, 1)

    def steps(self, x: Tensor, time_bias: Tensor, memory: StepMemory) -> Steps[Tensor]:
        hidden = self.block1(x, memory) + time_bias
        yield
        hidden = self.block2(hidden, memory)
        out: Tensor = hidden + self.shortcut(x)
        return out


class TransformerBlock(nn.Module):
    """Pre-norm self-attention (no positions, no q/k/v bias) and GELU feed-forward."""

    def __init__(self, width: int, heads: int, head_size: int) -> None:
        super().__init__()
        inner = heads * head_size
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.to_query = nn.Linear(width, inner, bias=False)
        self.to_keys_values = nn.Linear(width, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.linear_in = nn.Linear(width, FEED_FORWARD_RATIO * width)
        self.linear_out = nn.Linear(FEED_FORWARD_RATIO * width, width)

    def steps(self, x: Tensor, bias: Tensor | None, memory: StepMemory, max_scores: int | None) -> Steps[Tensor]:
        """x: [B, T, width]; bias: [B, 1, T, K] or None."""
        normed = self.norm_attention(x)
        key, value = self.to_keys_values(memory.extend_attention(normed)).chunk(2, dim=-1)
        key, value = split_heads(key, self.heads), split_heads(value, self.heads)
        parts = []
        for rows in query_tiles(x.shape[1], key.shape[2], max_scores):
            part = x[:, rows] + self._attend(normed[:, rows], key, value, bias_rows(bias, rows))
            hidden = F.gelu(self.linear_in(self.norm_feed_forward(part)))
            parts.append(part + self.linear_out(hidden))
            yield
        return join_tiles(parts)

    def _attend(self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        query = split_heads(self.to_query(x), self.heads)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        result: Tensor = self.to_out(join_heads(out))
        return result


class Unit(nn.Module):
    """Residual block and transformer blocks."""

    def __init__(self, in_channels: int, config: EstimatorConfig) -> None:
        super().__init__()
        width = config.channels[0]
        self.residual = ResidualBlock(in_channels, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, config.num_heads, config.attention_head_dim) for _ in range(config.n_blocks))

    def steps(self, x: Tensor, time_bias: Tensor, bias: Tensor | None, memory: StepMemory, max_scores: int | None) -> Steps[Tensor]:
        x = yield from self.residual.steps(x, time_bias, memory)
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            x = yield from block.steps(x, bias, memory, max_scores)
        return x


class Estimator(nn.Module):
    """Units in order: down, mid ..., up."""

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        width = config.channels[0]
        self.time_size = config.in_channels
        self.time_linear1 = nn.Linear(config.in_channels, TIME_WIDTH_RATIO * width)
        self.time_linear2 = nn.Linear(TIME_WIDTH_RATIO * width, TIME_WIDTH_RATIO * width)
        self.units = nn.ModuleList(Unit(channels, config) for channels in unit_inputs(config))
        self.down_conv = WindowLinear(width, width, _KERNEL)
        self.up_conv = WindowLinear(width, width, _KERNEL)
        self.final_block = ConvBlock(width, width)
        self.final_projection = WindowLinear(width, config.out_channels, 1)

    def time_biases(self, t: Tensor) -> Tensor:
        """The bias of each unit's residual block at time t, [B] -> [B, units, width]. Depends on t alone: compute once."""
        dtype = self.time_linear1.weight.dtype
        embedded = time_sinusoid(t.float(), self.time_size).to(dtype)
        embedded = F.mish(self.time_linear2(F.silu(self.time_linear1(embedded))))
        return torch.stack([unit.residual.time_projection(embedded) for unit in self._units()], dim=1)

    def _units(self) -> list[Unit]:
        return [unit for unit in self.units if isinstance(unit, Unit)]

    def forward(self, inputs: Tensor, time_biases: Tensor, bias: Tensor, memory: StepMemory) -> Tensor:
        """One evaluation.

        inputs: [B, T, in_channels]: mel, mu, speaker, prompt mel stacked in this order.
        time_biases: [B or 1, units, width]; bias: [B, 1, T, K]. Returns [B, T, out_channels].
        """
        return finish(self.steps(inputs, time_biases, bias, memory))

    def steps(
        self, inputs: Tensor, time_biases: Tensor, bias: Tensor | None, memory: StepMemory, max_scores: int | None = None
    ) -> Steps[Tensor]:
        """``forward`` with pauses. bias None: every frame sees all others."""
        down, *mids, up = self._units()
        times = time_biases.unsqueeze(2).unbind(1)  # per unit [B or 1, 1, width]
        skip = yield from down.steps(inputs, times[0], bias, memory, max_scores)
        x = self.down_conv(memory.extend_conv(skip))
        for unit, time_bias in zip(mids, times[1:-1], strict=True):
            x = yield from unit.steps(x, time_bias, bias, memory, max_scores)
        x = yield from up.steps(torch.cat([x, skip], dim=-1), times[-1], bias, memory, max_scores)
        x = self.up_conv(memory.extend_conv(x))
        out: Tensor = self.final_projection(self.final_block(x, memory))
        memory.end_step()
        return out


def unit_inputs(config: EstimatorConfig) -> list[int]:
    """Input channels of each unit."""
    width = config.channels[0]
    return [config.in_channels, *[width] * config.num_mid_blocks, 2 * width]


def conv_inputs(config: EstimatorConfig) -> list[int]:
    """Input channels of the causal convolutions in the order in which ``Estimator.forward`` calls them."""
    width = config.channels[0]
    channels = [config.in_channels, width, width]  # down unit, its trailing convolution
    channels += [width, width] * config.num_mid_blocks
    return [*channels, 2 * width, width, width, width]  # up unit, its trailing convolution, final block


def block_count(config: EstimatorConfig) -> int:
    """Transformer blocks of one evaluation."""
    return len(unit_inputs(config)) * config.n_blocks


def time_sinusoid(t: Tensor, size: int) -> Tensor:
    """[B] -> [B, size]: sines, then cosines, of 1000 t at size / 2 rates from 1 down to 1 / 10000."""
    half = size // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float32, device=t.device) * -(math.log(10000.0) / (half - 1)))
    angles = _TIME_SCALE * t[:, None] * rates[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)

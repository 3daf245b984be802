"""wav2vec2 (Baevski et al., 2020; the variant of XLSR-53 with layer norm before each part): samples in, frames of 20 ms out.

Only the layers that the codec's features need, without the final norm and everything for training. Keys are those of the file without
``wav2vec2.``. Sizes and file: ``wav2vec2_weights``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.gpu.precision import exact_float32

FEATURE_LAYERS = (11, 14, 16)  # the codec hears the mean of the states after so many layers
NUM_LAYERS = max(FEATURE_LAYERS)


@dataclass(frozen=True)
class Wav2Vec2Config:
    """Defaults are those of XLSR-53. conv_*: of the convolutions over samples; position_*: of the one that stands for positions."""

    width: int = 1024
    heads: int = 16
    intermediate: int = 4096
    layers: int = 24  # in the file
    conv_widths: tuple[int, ...] = (512,) * 7
    conv_kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    conv_strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    conv_bias: bool = True
    position_kernel: int = 128
    position_groups: int = 16
    norm_eps: float = 1e-5

    def frames(self, samples: int) -> int:
        """Frames of so many samples."""
        for kernel, stride in zip(self.conv_kernels, self.conv_strides, strict=True):
            samples = (samples - kernel) // stride + 1 if samples >= kernel else 0
        return samples


class SampleLayer(nn.Module):
    """Strided convolution, norm over the channels, GELU."""

    def __init__(self, in_channels: int, width: int, kernel: int, stride: int, config: Wav2Vec2Config) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, width, kernel, stride, bias=config.conv_bias)
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, N] -> [B, width, M]."""
        return F.gelu(self.layer_norm(self.conv(x).transpose(1, 2)).transpose(1, 2))


class Attention(nn.Module):
    def __init__(self, config: Wav2Vec2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> the same."""
        query, key, value = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        output: Tensor = self.out_proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    def __init__(self, config: Wav2Vec2Config) -> None:
        super().__init__()
        self.intermediate_dense = nn.Linear(config.width, config.intermediate)
        self.output_dense = nn.Linear(config.intermediate, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> the same."""
        output: Tensor = self.output_dense(F.gelu(self.intermediate_dense(x)))
        return output


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a norm."""

    def __init__(self, config: Wav2Vec2Config) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(config), FeedForward(config)
        self.layer_norm = nn.LayerNorm(config.width, config.norm_eps)
        self.final_layer_norm = nn.LayerNorm(config.width, config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> the same."""
        x = x + self.attention(self.layer_norm(x))
        output: Tensor = x + self.feed_forward(self.final_layer_norm(x))
        return output


class PositionConv(nn.Module):
    """Tells frames apart by their neighbours."""

    def __init__(self, config: Wav2Vec2Config) -> None:
        super().__init__()
        kernel = config.position_kernel
        self.conv = nn.Conv1d(config.width, config.width, kernel, padding=kernel // 2, groups=config.position_groups)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> the same; an even kernel makes a frame too many."""
        return F.gelu(self.conv(x.transpose(1, 2))[:, :, : x.shape[1]]).transpose(1, 2)


class Wav2Vec2(nn.Module):
    """Calls come from one thread at a time, as those of ``BiCodec``."""

    def __init__(self, config: Wav2Vec2Config) -> None:
        super().__init__()
        self.config = config
        widths = (1, *config.conv_widths)
        layers = zip(widths, widths[1:], config.conv_kernels, config.conv_strides, strict=False)
        self.feature_extractor = nn.ModuleDict({"conv_layers": nn.ModuleList(SampleLayer(*sizes, config) for sizes in layers)})
        self.feature_projection = nn.ModuleDict(
            {"layer_norm": nn.LayerNorm(widths[-1], config.norm_eps), "projection": nn.Linear(widths[-1], config.width)}
        )
        self.encoder = nn.ModuleDict(
            {"pos_conv_embed": PositionConv(config), "layers": nn.ModuleList(Layer(config) for _ in range(NUM_LAYERS))}
        )

    def normed_frames(self, samples: Tensor) -> Tensor:
        """[B, N] -> what the projection reads, [B, T, conv width]."""
        x = samples[:, None]
        layers = self.feature_extractor["conv_layers"]
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            x = layer(x)
        output: Tensor = self.feature_projection["layer_norm"](x.transpose(1, 2))
        return output

    def states(self, samples: Tensor) -> Iterator[Tensor]:
        """[B, N] -> [B, T, D] before the first layer and after each."""
        x = self.feature_projection["projection"](self.normed_frames(samples))
        x = x + self.encoder["pos_conv_embed"](x)
        yield x
        layers = self.encoder["layers"]
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            x = layer(x)
            yield x

    @torch.inference_mode()
    @exact_float32()
    def features(self, samples: Tensor) -> Tensor:
        """Whole recordings of one length, normalised, float32 [B, N] -> [B, frames(N), D]."""
        chosen = [state for number, state in enumerate(self.states(samples)) if number in FEATURE_LAYERS]
        return torch.stack(chosen).mean(0)

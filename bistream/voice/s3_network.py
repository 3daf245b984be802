"""The S3 speech tokenizer, version 2 or 3, in PyTorch: log-mel frames of several recordings in, 25 Hz speech tokens out.

The batched form of the ONNX file for a GPU (``torch_tokenizers``), with that file's weights (``s3_weights``).
``scripts/make_checkpoint.py`` writes its random ONNX model from this network's weights, and a test compares both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

HEAD_SIZE = 64  # fixed by the model's rotary table
ROTARY_BASE = 10_000.0
FSMN_KERNEL = 31
CODE_BASE = 3
DIGIT_SCALE = 0.9990000128746033  # upstream's; keeps values inside (-1, 1) when tanh saturates


@dataclass(frozen=True)
class S3Config:
    """Sizes of the network; the defaults are those of version 2 (123,714,568 parameters). Version 3 has 12 layers. digits: of a speech
    token, in base 3. attention_norm_eps: of the LayerNorms before attention, which no weight tells."""

    mel_bins: int = 128
    width: int = 1280
    layers: int = 6
    digits: int = 8
    attention_norm_eps: float = 1e-6

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> S3Config:
        """Sizes of the network with these weights; ``state`` has the first and the last layer."""
        width, mel_bins = state["encoder.conv1.weight"].shape[:2]
        layers = {match[1] for key in state if (match := re.match(r"encoder\.blocks\.(\d+)\.", key))}
        return cls(mel_bins, width, len(layers), len(state["quantizer._codebook.project_down.weight"]))

    @property
    def heads(self) -> int:
        return self.width // HEAD_SIZE


def expected_shapes(config: S3Config) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of the state dict (S3Tokenizer's names)."""
    width = config.width
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (width, config.mel_bins, 3),
        "encoder.conv1.bias": (width,),
        "encoder.conv2.weight": (width, width, 3),
        "encoder.conv2.bias": (width,),
    }
    for index in range(config.layers):
        block = f"encoder.blocks.{index}"
        for name in ("query", "value", "out"):
            shapes |= {f"{block}.attn.{name}.weight": (width, width), f"{block}.attn.{name}.bias": (width,)}
        shapes |= {
            f"{block}.attn.key.weight": (width, width),
            f"{block}.attn.fsmn_block.weight": (width, 1, FSMN_KERNEL),
            f"{block}.mlp.0.weight": (4 * width, width),
            f"{block}.mlp.0.bias": (4 * width,),
            f"{block}.mlp.2.weight": (width, 4 * width),
            f"{block}.mlp.2.bias": (width,),
        }
        for name in ("attn_ln", "mlp_ln"):
            shapes |= {f"{block}.{name}.weight": (width,), f"{block}.{name}.bias": (width,)}
    shapes["quantizer._codebook.project_down.weight"] = (config.digits, width)
    shapes["quantizer._codebook.project_down.bias"] = (config.digits,)
    return shapes


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """lengths int [B] -> bool [B, size], true inside."""
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def rotary_table(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, 1, HEAD_SIZE]; both halves of a head rotate by the same angles."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, HEAD_SIZE, 2, device=device).float() / HEAD_SIZE)
    angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
    angles = torch.cat([angles, angles], dim=-1)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding over halves. heads [B, T, H, 64]."""
    left, right = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat([-right, left], dim=-1) * sine


class _Attention(nn.Module):
    """Self-attention plus an FSMN memory, a depthwise convolution over the values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, FSMN_KERNEL, padding=FSMN_KERNEL // 2, groups=width, bias=False)

    def forward(self, x: Tensor, mask: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, T, D], mask bool [B, T] -> [B, T, D]."""
        batch, length, width = x.shape
        query, key, value = self.query(x), self.key(x), self.value(x)
        heads = (batch, length, width // HEAD_SIZE, HEAD_SIZE)
        query, key = rotate(query.view(heads), *rotary), rotate(key.view(heads), *rotary)
        attended = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.view(heads).transpose(1, 2), attn_mask=mask[:, None, None, :]
        )
        inside = mask[:, :, None]
        value = value * inside
        memory = (self.fsmn_block(value.transpose(1, 2)).transpose(1, 2) + value) * inside
        output: Tensor = self.out(attended.transpose(1, 2).reshape(batch, length, width)) + memory
        return output


class _Block(nn.Module):
    def __init__(self, width: int, attention_norm_eps: float) -> None:
        super().__init__()
        self.attn = _Attention(width)
        self.attn_ln = nn.LayerNorm(width, eps=attention_norm_eps)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width, eps=1e-5)

    def forward(self, x: Tensor, mask: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attn(self.attn_ln(x), mask, rotary)
        output: Tensor = x + self.mlp(self.mlp_ln(x))
        return output


class _Encoder(nn.Module):
    def __init__(self, config: S3Config) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.mel_bins, config.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(_Block(config.width, config.attention_norm_eps) for _ in range(config.layers))

    def forward(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """mel [B, 128, T], lengths int [B] -> hidden [B, ceil(T / 4), D] and its lengths."""
        x = mel
        for convolution in (self.conv1, self.conv2):
            x = functional.gelu(convolution(x * length_mask(lengths, x.shape[2])[:, None, :]))
            lengths = (lengths + 1) // 2
        x = x.transpose(1, 2)
        mask = length_mask(lengths, x.shape[1])
        rotary = rotary_table(x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, mask, rotary)
        return x, lengths


class S3Network(nn.Module):
    """The whole tokenizer. State-dict keys are S3Tokenizer's."""

    def __init__(self, config: S3Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = _Encoder(config)
        project_down = nn.Linear(config.width, config.digits)
        self.quantizer = nn.ModuleDict({"_codebook": nn.ModuleDict({"project_down": project_down})})
        self._project_down = [project_down]  # in a list, so that it is not a second entry of the state dict

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor], attention_norm_eps: float = S3Config.attention_norm_eps) -> S3Network:
        """state: complete, as of ``s3_weights``; its tensors say the sizes. attention_norm_eps is the family's."""
        config = replace(S3Config.of(state), attention_norm_eps=attention_norm_eps)
        with torch.device("meta"):
            network = cls(config)
        network.load_state_dict(state, assign=True)
        return network.eval()

    @torch.inference_mode()
    def hidden(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """mel float32 [B, 128, T], lengths int [B] -> hidden [B, ceil(T / 4), D], lengths [B]."""
        output: tuple[Tensor, Tensor] = self.encoder(mel, lengths)
        return output

    @torch.inference_mode()
    def digits(self, hidden: Tensor) -> Tensor:
        """Values before rounding, in (-1, 1): [B, T', D] -> float32 [B, T', digits]."""
        projected: Tensor = self._project_down[0](hidden)
        return projected.float().tanh() * DIGIT_SCALE

    @torch.inference_mode()
    def tokens(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """mel float32 [B, 128, T], lengths int [B] -> codes int32 [B, ceil(T / 4)] and their lengths [B]."""
        hidden, token_lengths = self.hidden(mel, lengths)
        powers = CODE_BASE ** torch.arange(self.config.digits, device=hidden.device)  # the first digit is the least significant one
        codes = ((self.digits(hidden).round().long() + 1) * powers).sum(dim=-1)
        return codes.int(), token_lengths

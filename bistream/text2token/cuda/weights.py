"""Weights of the language model in the format of the CUDA step: bfloat16, norms folded into the following projections.

In: ``ModelWeights`` (preferably in float32, so that a weight is rounded once). Out: ``PackedWeights`` on the device.
RMSNorm's weight vector multiplies the columns of the following projection; the rest of the norm is one scale per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.qwen2 import rope_tables
from bistream.text2token.sizes import CHUNK, DOWN_CHUNK, HEAD_SIZE, kernels_need
from bistream.text2token.weights import ModelWeights


@dataclass(frozen=True)
class PackedMatrix:
    """One matrix twice, in bfloat16: ``rows`` [out, in] for the kernels for many rows, ``tiles`` (``pack_tiles``) for those for few."""

    rows: Tensor
    tiles: Tensor


@dataclass(frozen=True)
class PackedLayer:
    qkv: PackedMatrix  # 16 features (rows) or 8 (tiles) of a head, then their rotation partners, at an offset of 32
    qkv_bias: Tensor  # float32
    output: PackedMatrix
    gate_up: PackedMatrix  # 16 features (rows) or 8 (tiles) of gate, then of up
    down: PackedMatrix


@dataclass(frozen=True)
class PackedWeights:
    embedding: Tensor  # bfloat16 [TokenSpace.size, hidden]
    layers: tuple[PackedLayer, ...]
    head: PackedMatrix
    head_bias: Tensor  # float32
    cos: Tensor  # float32 [max_position_embeddings, 32]
    sin: Tensor

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that every step must read, excluding embedding rows."""
        matrices = [matrix for layer in self.layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return sum(matrix.rows.numel() * matrix.rows.element_size() for matrix in (*matrices, self.head))


def pack_tiles(matrix: Tensor, chunk: int) -> Tensor:
    """[out, in] -> [out / 8, chunk / 32, chunks, 256]: 8 features of 32 columns as one warp loads them, 16 bytes per lane.

    Lane ``n * 4 + q`` holds feature n, columns ``sp * 16 + kh * 8 + q * 2 + k0`` (its 8 numbers in the order sp, kh, k0).
    Padding columns of the last chunk are zero.
    """
    features, columns = matrix.shape
    chunks = -(-columns // chunk)
    padded = torch.zeros((-(-features // 8) * 8, chunks * chunk), dtype=matrix.dtype, device=matrix.device)
    padded[:features, :columns] = matrix
    parts = padded.view(-1, 8, chunks, chunk // 32, 2, 2, 4, 2)  # tile, n, chunk, k32, sp, kh, q, k0
    return parts.permute(0, 3, 2, 1, 6, 4, 5, 7).reshape(-1, chunk // 32, chunks, 256).contiguous()


def _qkv_tiles(matrix: Tensor) -> Tensor:
    """Rows in the order of the tiles: in every head 0..8, 32..40, 8..16, 40..48, ..."""
    return matrix.view(-1, 2, 4, 8, matrix.shape[1]).transpose(1, 2).reshape(matrix.shape)


def _qkv_rows(matrix: Tensor) -> Tensor:
    """Rows in the order of ``qkv_many``: in every head 0..16, 32..48, 16..32, 48..64."""
    return matrix.view(-1, 2, 2, 16, matrix.shape[1]).transpose(1, 2).reshape(matrix.shape)


def _alternate(matrix: Tensor, size: int) -> Tensor:
    """Interleave gate and up, ``size`` rows at a time."""
    return matrix.view(2, -1, size, matrix.shape[1]).transpose(0, 1).reshape(matrix.shape)


def pack_weights(weights: ModelWeights, config: LanguageModelConfig, device: torch.device) -> PackedWeights:
    assert not kernels_need(config, torch.bfloat16)

    def plain(tensor: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return tensor.to(device=device, dtype=dtype).contiguous()

    def fold(matrix: Tensor, norm: Tensor) -> Tensor:
        return plain(matrix.to(device).float() * norm.to(device).float())

    def both(matrix: Tensor, chunk: int = CHUNK) -> PackedMatrix:
        return PackedMatrix(matrix, pack_tiles(matrix, chunk))

    layers = []
    for layer in weights.layers:
        qkv = fold(layer.qkv_weight, layer.input_norm)
        gate_up = fold(layer.gate_up_weight, layer.post_norm)
        layers.append(
            PackedLayer(
                qkv=PackedMatrix(_qkv_rows(qkv), pack_tiles(_qkv_tiles(qkv), CHUNK)),
                qkv_bias=plain(layer.qkv_bias, torch.float32),
                output=both(plain(layer.output_weight)),
                gate_up=PackedMatrix(_alternate(gate_up, 16), pack_tiles(_alternate(gate_up, 8), CHUNK)),
                down=both(plain(layer.down_weight), chunk=DOWN_CHUNK),
            )
        )
    cos, sin = rope_tables(config, device)
    half = HEAD_SIZE // 2
    return PackedWeights(
        embedding=plain(weights.embedding),
        layers=tuple(layers),
        head=both(fold(weights.head_weight, weights.final_norm)),
        head_bias=plain(weights.head_bias, torch.float32),
        cos=cos[:, :half].contiguous(),
        sin=sin[:, :half].contiguous(),
    )

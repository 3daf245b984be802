"""The flow encoder on packed rows: token ids in, features at frame rate out. Called by ``launches.CudaSolver`` once per call.

Attention layers run as kernels; the small operations before and between them are left to torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import FlowConfig
from bistream.token2mel.cuda import kernels_convolution_many, kernels_encoder_attention, kernels_linear
from bistream.token2mel.cuda.batch import BatchArrays, Bucket, RateArrays, max_tiles
from bistream.token2mel.cuda.memory import FlowBuffers
from bistream.token2mel.cuda.tuning import Tuning, tile_sizes
from bistream.token2mel.cuda.weights import EncoderWeights
from bistream.token2mel.encoder import LAYER_NORM_EPS, ConformerLayer, InputEmbedding
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.pages import FlowPages

_KEYS = 32  # per step of an attention program
_POSITION_ROWS = 16


class CudaEncoder:
    """Launches for one bucket. arrays: the batch on the device, see ``batch_filling.fill``."""

    def __init__(
        self,
        config: FlowConfig,
        network: FlowNetwork,
        weights: EncoderWeights,
        pages: FlowPages,
        buffers: FlowBuffers,
        arrays: BatchArrays[Tensor],
        bucket: Bucket,
        tuning: Tuning,
        left_context_chunks: int,
    ) -> None:
        self.config = config
        self.network = network
        self.weights = weights
        self.pages = pages
        self.buffers = buffers
        self.arrays = arrays
        self.bucket = bucket
        self.tuning = tuning
        self.left_context_chunks = left_context_chunks
        self.width = config.encoder.output_size
        self.heads = config.encoder.attention_heads
        self.tiles = tile_sizes(tuning)
        self._dependent_launch = torch.cuda.get_device_properties(buffers.x.device).major >= 9

    def launch(self) -> Tensor:
        """mu, 16 bit [frames, mel bins]."""
        encoder, buffers = self.network.encoder, self.buffers
        tokens, frames = self.bucket.tokens, self.bucket.tokens * self.config.token_mel_ratio
        buffers.encoder_x[:tokens] = self._embed_tokens()
        layers = [layer for layer in encoder.token_layers if isinstance(layer, ConformerLayer)]
        for index, layer in enumerate(layers):
            memory = self.pages.token_keys_values[index]
            self._layer(layer, index, self.arrays.tokens, memory, self.tiles.tokens, is_last=index == len(layers) - 1)
        self._upsample(tokens)
        x = _embed(encoder.frame_embed, buffers.upsampled.view(-1)[: frames * self.width].view(frames, self.width))
        buffers.encoder_x[:frames] = x
        for index, layer in enumerate(layer for layer in encoder.frame_layers if isinstance(layer, ConformerLayer)):
            memory = self.pages.frame_keys_values[index]
            self._layer(layer, len(layers) + index, self.arrays.frames, memory, self.tiles.frames, is_last=False)
        norm = encoder.norm
        normed = F.layer_norm(buffers.encoder_x[:frames], (self.width,), norm.weight.float(), norm.bias.float(), norm.eps)
        projected: Tensor = self.network.encoder_projection(normed.to(self.network.dtype))
        return projected

    def _embed_tokens(self) -> Tensor:
        """Embedding and the two lookahead convolutions, [tokens, width]."""
        arrays, network, lookahead = self.arrays, self.network, self.network.encoder.lookahead
        vectors = _embed(network.encoder.embed, F.embedding(arrays.ids, network.token_embedding.weight))
        vectors = vectors * arrays.present[:, None]
        window = vectors[arrays.lookahead_window].flatten(1)
        mixed = F.leaky_relu(F.linear(window, lookahead.conv1.weight.flatten(1), lookahead.conv1.bias), 0.01)
        mixed = mixed * arrays.lookahead_exists[:, None]
        out = F.linear(mixed[arrays.history_window].flatten(1), lookahead.conv2.weight.flatten(1), lookahead.conv2.bias)
        return out + vectors[arrays.centre]

    def _upsample(self, tokens: int) -> None:
        """encoder_copy [tokens, width] -> upsampled [tokens, ratio * width], which is [frames, width]."""
        arrays, buffers, weights = self.arrays, self.buffers, self.weights
        rows, features, depth, stages, warps = self.tuning.encoder_tile
        out_width = weights.upsample_weight.shape[0]
        tails = self.pages.upsample_tail
        kernels_convolution_many.window_linear[(tokens // rows, out_width // min(features, out_width))](
            buffers.encoder_copy, self.width, weights.upsample_weight, weights.upsample_bias, arrays.tokens.live, arrays.tokens.index,
            arrays.tokens.last, arrays.tokens.tail, tails, 0, buffers.upsampled,
            CHANNELS=self.width, WIDTH=out_width, TAIL_WIDTH=self.width, TILE=rows, FEATURES=min(features, out_width),
            STEP=math.gcd(self.width, depth), STAGES=stages, **self._options(warps),
        )  # fmt: skip

    def _layer(self, layer: ConformerLayer, index: int, at_rate: RateArrays[Tensor], memory: Tensor, tile: int, is_last: bool) -> None:
        """One conformer layer on ``encoder_x``; the last one's result goes to ``encoder_copy`` in 16 bit.

        tile: rows of an attention program.
        """
        buffers, live, rows = self.buffers, at_rate.live, len(at_rate.index)
        attention = layer.attention
        self._norm_linear(layer.norm_attention, attention.to_qkv, "", buffers.qkv, live, rows)
        self._attend(layer, index, at_rate, memory, tile)
        self._onto_residual(attention.to_out, buffers.encoder_attended, live, rows, False)
        self._norm_linear(layer.norm_feed_forward, layer.linear_in, "silu", buffers.encoder_hidden, live, rows)
        self._onto_residual(layer.linear_out, buffers.encoder_hidden, live, rows, is_last)

    def _attend(self, layer: ConformerLayer, index: int, at_rate: RateArrays[Tensor], memory: Tensor, tile: int) -> None:
        buffers, attention, rows, pages = self.buffers, layer.attention, len(at_rate.index), self.arrays.table
        table = self.weights.position_table
        sizes = {"WIDTH": self.width, "HEADS": self.heads, "HEAD": self.width // self.heads}
        kernels_encoder_attention.position_rows[(rows // _POSITION_ROWS, self.heads)](
            buffers.qkv, attention.position_bias, self.weights.position_projections[index], table, at_rate.live,
            at_rate.position, at_rate.keep, memory, buffers.turned, TILE=_POSITION_ROWS, **sizes, **self._options(4),
        )  # fmt: skip
        kernels_encoder_attention.attend_relative[(max_tiles(rows, tile, self.bucket.sessions), self.heads)](
            buffers.qkv, attention.content_bias, buffers.turned, table, memory, at_rate.tiles, at_rate.session,
            pages, buffers.encoder_attended, math.log2(math.e) / math.sqrt(self.width // self.heads),
            CHUNK=memory.shape[1], TABLE=pages.shape[1], LEFT=self.left_context_chunks, FRAMES=tile, KEYS=_KEYS, STAGES=2,
            **sizes, **self._options(4),
        )  # fmt: skip

    def _norm_linear(self, norm: nn.LayerNorm, linear: nn.Linear, activation: str, out: Tensor, live: Tensor, rows: int) -> None:
        tile, features, depth, stages, warps = self.tuning.encoder_tile
        size = linear.weight.shape[0]
        if self.tuning.few is None:  # normalise once, not once per tile of features
            normed, features = self.buffers.encoder_copy, math.gcd(128, size)
            kernels_linear.norm_rows[(rows // 8,)](
                self.buffers.encoder_x, norm.weight, norm.bias, live, normed,
                WIDTH=self.width, TILE=8, EPS=LAYER_NORM_EPS, **self._options(4),
            )  # fmt: skip
            kernels_linear.linear[(size // features, rows // tile)](
                normed, self.width, 0, linear.weight, linear.bias, live, out, size,
                DEPTH=self.width, TILE=tile, FEATURES=features, STEP=math.gcd(self.width, depth), STAGES=stages,
                ACTIVATION=activation, **self._options(warps),
            )  # fmt: skip
            return
        tile, features = min(tile, 32), math.gcd(min(features, 64), size)
        kernels_linear.norm_linear[(rows // tile, size // features)](
            self.buffers.encoder_x, norm.weight, norm.bias, linear.weight, linear.bias, live, out, size,
            WIDTH=self.width, TILE=tile, FEATURES=features, EPS=LAYER_NORM_EPS, ACTIVATION=activation, **self._options(8),
        )  # fmt: skip

    def _onto_residual(self, linear: nn.Linear, a: Tensor, live: Tensor, rows: int, is_last: bool) -> None:
        tile, features, depth, stages, warps = self.tuning.encoder_tile
        features = min(features, self.width)
        depth_size = linear.weight.shape[1]
        target = self.buffers.encoder_copy
        kernels_linear.residual_linear[(rows // tile, self.width // features)](
            a, linear.weight, linear.bias, live, self.buffers.encoder_x, target, target.stride(0),
            DEPTH=depth_size, WIDTH=self.width, TILE=tile, FEATURES=features, STEP=math.gcd(depth_size, depth), STAGES=stages,
            IS_LAST=is_last, **self._options(warps),
        )  # fmt: skip

    def _options(self, warps: int) -> dict[str, Any]:
        return {"PDL": self._dependent_launch, "num_warps": warps, "launch_pdl": self._dependent_launch}


def _embed(embedding: InputEmbedding, x: Tensor) -> Tensor:
    embedded: Tensor = embedding(x)
    return embedded

"""The Qwen2 body with the speech head: ids of ``TokenSpace`` in, float32 scores of the speech vocabulary out.

The engine runs ``forward_rows``: every token is a row (position, id) of some sequence; keys and values are written to the
paged cache first, then each row attends to its own sequence. ``forward_dense`` computes one whole sequence without a cache,
with the same layers, for comparison. Sizes come from ``LanguageModelConfig``, weights from ``weights.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.attention import AttentionPlan, attend_causal, attend_rows
from bistream.text2token.engine import TokenSpace
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.products import product
from bistream.text2token.weights import LayerWeights, ModelWeights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, query, key, value -> [n, hidden]
Observe = Callable[[int, Tensor], None]  # layer, query [n, heads, head_size]


def rope_tables(config: LanguageModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each float32 [max_position_embeddings, head_size]; both halves of a head rotate by the same angles."""
    exponents = torch.arange(0, config.head_size, 2, device=device, dtype=torch.float32) / config.head_size
    frequencies = 1.0 / config.rope_theta**exponents
    positions = torch.arange(config.max_position_embeddings, device=device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """heads [n, h, head_size]; cos, sin [n, 1, head_size]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


class Qwen2Model:
    """Weights and tables; holds no sequence state."""

    def __init__(self, config: LanguageModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights
        self.space = TokenSpace.of(config)
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._cos, self._sin = rope_tables(config, self.device)

    def embed(self, ids: Tensor) -> Tensor:
        """ids int64 [n] -> [n, hidden]."""
        return functional.embedding(ids, self.weights.embedding)

    def forward_rows(
        self, ids: Tensor, positions: Tensor, cache: PagedCache, cache_index: Tensor, plan: AttentionPlan, observe: Observe | None = None
    ) -> Tensor:
        """ids, positions, cache_index (``block * block_size + offset``) int64 [n] -> hidden [n, hidden], final norm applied.

        observe: called in each layer when its keys are in the cache.
        """

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            cache.write(layer, cache_index, key, value)
            if observe is not None:
                observe(layer, query)
            return attend_rows(query, cache.blocks[layer], plan)

        return self.forward_embedded(self.embed(ids), positions, attend)

    def forward_dense(self, ids: Tensor) -> Tensor:
        """One whole sequence from position 0. ids int64 [n] -> hidden [n, hidden], final norm applied."""

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return attend_causal(query, key, value)

        return self.forward_embedded(self.embed(ids), torch.arange(len(ids), device=self.device), attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, hidden] -> float32 [n, ``TokenSpace.num_scores``]: speech tokens, then the ids that end a turn."""
        return product(hidden.float(), self.weights.head_weight, self.weights.head_bias)

    def forward_embedded(self, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """hidden: embedded ids [n, hidden]. positions: int64 [n]. Returns [n, hidden], final norm applied."""
        cos = self._cos[positions][:, None].to(self.dtype)
        sin = self._sin[positions][:, None].to(self.dtype)
        for index, layer in enumerate(self.weights.layers):
            hidden = hidden + self._attention(index, layer, hidden, cos, sin, attend)
            hidden = hidden + self._mlp(layer, hidden)
        return self._norm(hidden, self.weights.final_norm)

    def _attention(self, index: int, layer: LayerWeights, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        config = self.config
        fused = product(self._norm(hidden, layer.input_norm), layer.qkv_weight, layer.qkv_bias)
        heads = fused.view(len(hidden), -1, config.head_size)
        num_rotated = config.num_attention_heads + config.num_key_value_heads
        rotated = _rotate(heads[:, :num_rotated], cos, sin)
        query, key = rotated[:, : config.num_attention_heads], rotated[:, config.num_attention_heads :]
        return product(attend(index, query, key, heads[:, num_rotated:]), layer.output_weight)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = product(self._norm(hidden, layer.post_norm), layer.gate_up_weight).chunk(2, dim=-1)
        return product(functional.silu(gate) * up, layer.down_weight)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)

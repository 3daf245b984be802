"""One step of the language model for a bucket of rows, function by function, and all of its device state.

In: row fields, copied to the device by the runner. Out: chosen head rows; keys and values in the cache, the sampler's state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine import TokenSpace
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs import layer
from bistream.text2token.graphs.attention import AttentionOptions
from bistream.text2token.graphs.layer import LayerShape, RowInputs, RowTensors
from bistream.text2token.graphs.tuning import GraphTuning
from bistream.text2token.graphs.weights import GraphWeights, padded_query_heads
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.one_table.sampling import make_sampler
from bistream.text2token.sampler import SamplerState

CANDIDATES = 32  # ids that sampling sorts; a session with a larger top_k needs more (``GraphStepRunner``)


class StepFunctions(NamedTuple):
    """The functions of ``layer.py``, compiled or not."""

    begin_rows: Callable[..., tuple[Tensor, RowTensors]] = layer.begin_rows
    run_layer: Callable[..., tuple[Tensor, Tensor]] = layer.run_layer
    finish_rows: Callable[..., Tensor] = layer.finish_rows
    sample_rows: Callable[..., Tensor] = layer.sample_rows
    begin_turns: Callable[..., None] = layer.begin_turns


def compiled_functions(tuning: GraphTuning, backend: str = "inductor") -> StepFunctions:
    """The layer is compiled per row count (attention needs it as a constant), the others for one row, the largest count and any count."""
    # sums over splits are unrolled, so that combining them is one kernel
    options: dict[str, Any] = {"unroll_reductions_threshold": tuning.most_splits, "combo_kernels": bool(tuning.combine_kernels)}
    compiled = functools.partial(torch.compile, fullgraph=True, backend=backend)
    return StepFunctions(
        begin_rows=compiled(layer.begin_rows),
        run_layer=compiled(layer.run_layer, dynamic=False, options=options if backend == "inductor" else None),
        finish_rows=compiled(layer.finish_rows),
        sample_rows=compiled(layer.sample_rows),
        begin_turns=compiled(layer.begin_turns),
    )


class GraphStep:
    def __init__(
        self, config: LanguageModelConfig, weights: GraphWeights, settings: EngineSettings, functions: StepFunctions, tuning: GraphTuning
    ) -> None:
        device = weights.embedding.device
        self.weights = weights
        self.sampler = make_sampler(config, device, exact=False)
        self.functions = functions if self.sampler.compiles else functions._replace(sample_rows=layer.sample_rows)
        self.tuning = tuning
        self.state = SamplerState(settings.max_sessions, TokenSpace.of(config), self.sampler.history_size, device)
        usual = 1 << (config.top_k - 1).bit_length()  # a session with the checkpoint's own top_k records nothing again
        self.state.top_k_in_use = min(max(CANDIDATES, usual), config.num_scores)
        # one more block and slot than can be owned, for padding rows
        self.cache = PagedCache(config, settings.num_blocks + 1, settings.block_size, device, weights.embedding.dtype)
        self.cache.blocks.zero_()  # attention multiplies masked values by zero
        self.table = torch.zeros((settings.max_sessions + 1, settings.blocks_per_sequence), dtype=torch.int32, device=device)
        self.table[settings.max_sessions] = settings.num_blocks
        self._memories = [blocks.view(2, -1, *blocks.shape[-2:]) for blocks in self.cache.blocks]
        self._inputs = RowInputs(self.state.last_id, weights.embedding, self.table, weights.cos, weights.sin)
        self._heads = padded_query_heads(config), config.num_key_value_heads
        self._eps = config.rms_norm_eps
        with torch.inference_mode():  # like all other residual streams, or each layer would be compiled twice
            self._zeros = torch.zeros((settings.max_rows, config.hidden_size), device=device)

    def scores(self, fields: Tensor) -> tuple[Tensor, RowTensors]:
        """fields: int32 [n, NUM_FIELDS]. Keys and values go to the cache. Returns float32 [n, V] without the head's bias, and the rows."""
        functions, weights = self.functions, self.weights
        addend, rows = functions.begin_rows(fields, self._inputs)
        residual = self._zeros[: len(fields)]
        shape = self._shape(len(fields))
        for tensors, memory in zip(weights.layers, self._memories, strict=True):
            residual, addend = functions.run_layer(residual, addend, tensors, memory, rows, shape)
        return layer.head_scores(functions.finish_rows(residual, addend, self._eps), weights.head_weight), rows

    def launch(self, fields: Tensor) -> Tensor:
        """The whole step. Returns int32 [n]: chosen head rows, or codes of ``sequence.py``."""
        scores, rows = self.scores(fields)
        return self.functions.sample_rows(scores, self.weights.head_bias, rows.sampling_slots, self.state, self.sampler)

    def begin_turns(self, numbers: Tensor, blocks: Tensor) -> None:
        """See ``layer.begin_turns``."""
        self.functions.begin_turns(numbers, blocks, self.table, self.state)

    def _shape(self, rows: int) -> LayerShape:
        tuning = self.tuning
        return LayerShape(*self._heads, self._eps, AttentionOptions(tuning.splits(rows), tuning.num_warps, tuning.num_stages))

"""One step of the language model for a number of rows, and all of its device state: kernels on a GPU, ``layer.py`` elsewhere.

In: row fields, copied to the device by the runner. Out: chosen head rows; keys and values in the cache, the sampler's state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bistream.checkpoints.alignment import Head
from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine import TokenSpace
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs import layer
from bistream.text2token.graphs.text_reading import TextReading
from bistream.text2token.graphs.tuning import Tuning
from bistream.text2token.graphs.weights import GraphWeights
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.one_table.sampling import make_sampler
from bistream.text2token.sampler import RepetitionAwareSampler, SamplerState

if TYPE_CHECKING:
    from bistream.text2token.graphs.cuda.launches import StepKernels

CANDIDATES = 32  # ids that other samplers than the kernel sort; a session with a larger top_k needs more (``GraphStepRunner``)


class GraphStep:
    def __init__(
        self, config: LanguageModelConfig, weights: GraphWeights, settings: EngineSettings, tuning: Tuning, head: Head | None = None
    ) -> None:
        """head: to be read; ``reading`` tells what it looks at."""
        device = weights.embedding.device
        self.config, self.weights = config, weights
        self.sampler = make_sampler(config, device, exact=False)
        self.state = SamplerState(settings.max_sessions, TokenSpace.of(config), self.sampler.history_size, device)
        usual = 1 << (config.top_k - 1).bit_length()  # a session with the checkpoint's own top_k records nothing again
        self.state.top_k_in_use = min(max(CANDIDATES, usual), config.num_scores)
        # one more block and slot than can be owned, for padding rows
        self.cache = PagedCache(config, settings.num_blocks + 1, settings.block_size, device, weights.embedding.dtype)
        self.cache.blocks.zero_()  # attention multiplies masked values by zero
        self.table = torch.zeros((settings.max_sessions + 1, settings.blocks_per_sequence), dtype=torch.int32, device=device)
        self.table[settings.max_sessions] = settings.num_blocks
        self.reading = None if head is None else TextReading(head, self.cache, config.text_vocab_size, settings.max_rows)
        self.kernels = self._make_kernels(settings, tuning) if device.type == "cuda" else None
        self._sample_rows = self._sampling(device)

    @property
    def sorts_candidates(self) -> bool:
        """Whether a larger ``top_k`` than ``SamplerState.top_k_in_use`` changes the operations of a step."""
        return self.kernels is None or not isinstance(self.sampler, RepetitionAwareSampler)

    def scores(self, fields: Tensor) -> Tensor:
        """fields: int32 [n, NUM_FIELDS]. Keys and values go to the cache. Returns float32 [n, rows of the head, padding included]."""
        if self.kernels is not None:
            return self.kernels.scores(fields)
        return layer.scores_of_rows(fields, self.weights, self.config, self.state, self.cache, self.table, self.reading)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ``PagedCache.copy_blocks``."""
        self.cache.copy_blocks(pairs)
        if self.reading is not None:
            self.reading.copy_blocks(pairs)

    def launch(self, fields: Tensor) -> Tensor:
        """The whole step. Returns int32 [n]: chosen head rows, or codes of ``sequence.py``."""
        scores = self.scores(fields)
        if self.kernels is not None and not self.sorts_candidates:
            return self.kernels.sample(fields)
        return self._sample_rows(scores, fields, self.state, self.sampler)

    def begin_turns(self, numbers: Tensor, blocks: Tensor) -> None:
        """In host memory that the device can read. See ``layer.begin_turns``."""
        if self.kernels is not None:
            self.kernels.begin_turns(numbers, blocks)
        else:
            layer.begin_turns(numbers, blocks, self.table, self.state)

    def _make_kernels(self, settings: EngineSettings, tuning: Tuning) -> StepKernels:
        from bistream.text2token.graphs.cuda.launches import StepKernels  # noqa: PLC0415  (loads Triton)

        return StepKernels(self.config, self.weights, self.cache, self.table, self.state, settings.max_rows, tuning, self.reading)

    def _sampling(self, device: torch.device) -> Callable[..., Tensor]:
        """Compiled where it is neither a kernel nor on the CPU, and where PyTorch's compiler can."""
        return torch.compile(layer.sample_rows, fullgraph=True) if device.type == "cuda" and self.sampler.compiles else layer.sample_rows

"""One step of the language model for a number of rows, and all of its device state.

In: row fields, copied to the device by the runner. Out: chosen head rows; keys and values in the cache, the sampler's state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bistream.checkpoints.alignment import Head
from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine import TokenSpace
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs.batch import RowField
from bistream.text2token.graphs.text_reading import TextReading
from bistream.text2token.graphs.tuning import Tuning
from bistream.text2token.graphs.weights import GraphWeights
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.one_table.sampling import make_sampler
from bistream.text2token.sampler import RepetitionAwareSampler, Sampler, SamplerState

if TYPE_CHECKING:
    from bistream.text2token.graphs.cuda.launches import StepKernels

MakeKernels = Callable[["GraphStep", int, Tuning], Any]  # of a step, with its most rows; the result is used as ``StepKernels``
CANDIDATES = 32  # ids that other samplers than the kernel sort; a session with a larger top_k needs more (``GraphStepRunner``)


class GraphStep:
    def __init__(
        self,
        config: LanguageModelConfig,
        weights: GraphWeights,
        settings: EngineSettings,
        tuning: Tuning,
        head: Head | None = None,
        make_kernels: MakeKernels | None = None,
    ) -> None:
        """head: to be read; ``reading`` tells what it looks at. make_kernels: None: those of a GPU."""
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
        self.kernels: StepKernels = (make_kernels or _make_kernels)(self, settings.max_rows, tuning)
        # Compiled where it is neither a kernel nor on the CPU, and where PyTorch's compiler can.
        compiles = device.type == "cuda" and self.sampler.compiles
        self._sample_rows = torch.compile(sample_rows, fullgraph=True) if compiles else sample_rows

    @property
    def sorts_candidates(self) -> bool:
        """Whether a larger ``top_k`` than ``SamplerState.top_k_in_use`` changes the operations of a step."""
        return not isinstance(self.sampler, RepetitionAwareSampler)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ``PagedCache.copy_blocks``."""
        self.cache.copy_blocks(pairs)
        if self.reading is not None:
            self.reading.copy_blocks(pairs)

    def launch(self, fields: Tensor) -> Tensor:
        """The whole step. Returns int32 [n]: chosen head rows, or codes of ``sequence.py``."""
        scores = self.kernels.scores(fields)
        if self.sorts_candidates:
            return self._sample_rows(scores, fields, self.state, self.sampler)
        return self.kernels.sample(fields)


def _make_kernels(step: GraphStep, max_rows: int, tuning: Tuning) -> StepKernels:
    from bistream.text2token.graphs.cuda.launches import StepKernels  # noqa: PLC0415  (loads Triton)

    return StepKernels(step.config, step.weights, step.cache, step.table, step.state, max_rows, tuning, step.reading)


def sample_rows(scores: Tensor, fields: Tensor, state: SamplerState, sampler: Sampler) -> Tensor:
    """int32 [n]: head rows, or a code of ``sequence.py``; meaningless for rows that do not sample, which count as the filler slot's."""
    filler = len(state.session_ids) - 1
    slots = torch.where(fields[:, RowField.SAMPLES] > 0, fields[:, RowField.SLOT].long(), filler)
    log_probs, not_finite = state.masked_log_probs(scores[:, : state.space.num_scores], slots)
    return state.record(slots, sampler.choose(log_probs, state, slots), not_finite).int()

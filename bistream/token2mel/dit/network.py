"""The whole flow network of CosyVoice3: padded batches of tokens and prompt conditions in, mel frames out.

There is no encoder: embedded tokens go through the lookahead convolutions and are repeated for every frame of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bistream.checkpoints.config import DitFlowConfig
from bistream.gpu.steps import Steps
from bistream.token2mel.dit.estimator import CONV_HISTORY_FRAMES, Dit
from bistream.token2mel.dit.modulation import Modulation
from bistream.token2mel.flow import FlowBatch, FlowModel
from bistream.token2mel.flow_matching import GuidedSolver, SolverState
from bistream.token2mel.lookahead import Lookahead
from bistream.token2mel.memory import BlankMemory, SolverMemory, StepMemory


class DitMatching(GuidedSolver):
    """The solver with the DiT."""

    modulations: Tensor

    def __init__(self, config: DitFlowConfig) -> None:
        super().__init__(config)
        self.estimator = Dit(config.dit)
        self.register_buffer("modulations", torch.empty(0), persistent=False)

    def prepare(self, mel_bins: int, modulation: Modulation) -> None:
        """Compute noise and the vectors of every step; call once after loading the weights. modulation: float32, on any device."""
        device = self.estimator.projection.weight.device
        times = self.prepare_steps(mel_bins, device)
        self.modulations = modulation(times.to(modulation.linear1.weight.device)).to(device)  # float32 [steps, modulation_size]

    def velocity(self, inputs: Tensor, state: SolverState, memory: StepMemory, max_scores: int | None) -> Steps[Tensor]:
        first_frames = state.first_frames.repeat(2)
        return (yield from self.estimator.steps(inputs, self.modulations[state.step], first_frames, state.bias, memory, max_scores))


class DitFlow(FlowModel):
    config: DitFlowConfig
    matching: DitMatching

    def __init__(self, config: DitFlowConfig) -> None:
        super().__init__(config)
        self.lookahead = Lookahead(config.input_size, config.pre_lookahead_len, config.lookahead_channels)
        self.matching = DitMatching(config)

    def blank_memory(self) -> SolverMemory:
        return BlankMemory(CONV_HISTORY_FRAMES)

    @torch.no_grad()
    def begin(self, batch: FlowBatch, memory: SolverMemory) -> SolverState:
        ratio = self.config.token_mel_ratio
        return self.matching.begin(batch.starts * ratio, self.conditions(batch), self.attention_bias(batch, ratio), memory)

    @torch.no_grad()
    def encode(self, batch: FlowBatch, memory: SolverMemory) -> Tensor:
        return self.conditions(batch)

    @torch.no_grad()
    def whole_utterance(self, batch: FlowBatch, max_scores: int) -> Steps[Tensor]:
        first_frames, conditions = batch.starts * self.config.token_mel_ratio, self.conditions(batch)
        yield
        return (yield from self.matching.steps(first_frames, conditions, None, self.blank_memory(), max_scores))

    def conditions(self, batch: FlowBatch) -> Tensor:
        """The solver's inputs besides noise, [S, ratio * T, channels]: prompt mel, mixed tokens and speaker."""
        vectors = self.token_embedding(batch.token_ids) * batch.present[:, :, None]
        mu = self.lookahead(vectors, batch.starts).repeat_interleave(self.config.token_mel_ratio, dim=1)
        return torch.cat([batch.prompt_mel.to(self.dtype), mu, self.speaker(batch, mu.shape[1])], dim=-1)

"""The whole flow network of CosyVoice2, and what it shares with that of CosyVoice3: batches of tokens and conditions in, mel frames out.

``FlowBatch`` carries the work of many sessions to the device: every tensor has a static shape given by the
number of rows, the padded number of new tokens and the width of the page table. ``stage.FlowStage`` builds and reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import FlowConfig
from bistream.gpu.steps import Steps, finish
from bistream.token2mel.encoder import FlowEncoder
from bistream.token2mel.flow_matching import FlowMatching, GuidedSolver, SolverState
from bistream.token2mel.memory import BlankMemory, EncoderMemory, FlowMemory, SolverMemory, attention_bias
from bistream.token2mel.sizes import LOOKAHEAD_HISTORY_TOKENS


@dataclass(frozen=True)
class FlowBatch:
    """New parts of S sequences. Each starts on a chunk boundary of its sequence (counted from the start of the prompt).

    token_ids: int64 [S, 2 + T + lookahead]: two tokens of history, T new, the lookahead; any valid id where absent.
    present: bool [S, 2 + T + lookahead]: false before the start, and after the last known token (zero vectors there).
    starts: int64 [S], position of the first new token.
    lengths: int64 [S], real new tokens of each row, 1 ... T.
    context_chunks: int64 [S], chunks of stored context; the page table is ``table_chunks`` wide, aligned to the right.
    prompt_mel: float32 [S, ratio * T, bins], zero after the prompt.
    speaker: float32 [S, speaker_size], not normalised.
    streaming: chunked attention (streams) or full attention (offline).
    """

    token_ids: Tensor
    present: Tensor
    starts: Tensor
    lengths: Tensor
    context_chunks: Tensor
    prompt_mel: Tensor
    speaker: Tensor
    table_chunks: int
    left_context_chunks: int
    streaming: bool


class FlowModel(nn.Module):
    """What runners know of a flow network. Subclasses: ``FlowNetwork`` and ``dit.network.DitFlow``."""

    matching: GuidedSolver

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        table = torch.empty(config.vocab_size, config.input_size)
        if not table.is_meta:  # there ``normal_`` imports torch's compiler, which takes seconds of every start
            nn.init.normal_(table)
        self.token_embedding: nn.Embedding = nn.Embedding.from_pretrained(table, freeze=False)  # type: ignore[no-untyped-call]
        self.speaker_projection = nn.Linear(config.spk_embed_dim, config.output_size)

    @property
    def dtype(self) -> torch.dtype:
        return self.token_embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.token_embedding.weight.device

    def blank_memory(self) -> SolverMemory:
        """For sequences without stored state."""
        raise NotImplementedError

    @torch.no_grad()
    def forward(self, batch: FlowBatch, memory: SolverMemory) -> Tensor:
        """Mel of the new frames, float32 [S, ratio * T, bins]; frames beyond a row's length are padding."""
        state = self.begin(batch, memory)
        while state.step < self.config.n_timesteps:
            self.advance(state)
        return state.x

    def begin(self, batch: FlowBatch, memory: SolverMemory) -> SolverState:
        """Everything before the solver's first step. memory: ``blank_memory``, or that of the network's own pages."""
        raise NotImplementedError

    @torch.no_grad()
    def advance(self, state: SolverState) -> None:
        """One step of the solver."""
        finish(self.matching.advance(state))

    def whole_utterance(self, batch: FlowBatch, max_scores: int) -> Steps[Tensor]:
        """Mel of one unpadded sequence with full attention and without stored state, in steps; float32 [1, ratio * T, bins].

        A step computes at most about ``max_scores`` attention scores per head, which bounds its time and memory.
        """
        raise NotImplementedError

    def encode(self, batch: FlowBatch, memory: SolverMemory) -> Tensor:
        """The solver's inputs besides noise alone, [S, ratio * T, channels], for a solver of another tier."""
        raise NotImplementedError

    def attention_bias(self, batch: FlowBatch, ratio: int) -> Tensor:
        """The additive attention mask at ``ratio`` frames per token."""
        lookahead = self.config.pre_lookahead_len
        return attention_bias(
            batch.lengths * ratio,
            batch.context_chunks,
            frames=(batch.token_ids.shape[1] - LOOKAHEAD_HISTORY_TOKENS - lookahead) * ratio,
            table_chunks=batch.table_chunks,
            chunk_frames=self.config.chunk_tokens * ratio,
            left_context_chunks=batch.left_context_chunks,
            streaming=batch.streaming,
            dtype=self.dtype,
        )

    def speaker(self, batch: FlowBatch, frames: int) -> Tensor:
        """The speaker vectors [S, frames, bins], the same for every frame."""
        projected: Tensor = self.speaker_projection(F.normalize(batch.speaker, dim=1).to(self.dtype))
        return projected[:, None, :].expand(-1, frames, -1)


class FlowNetwork(FlowModel):
    """The flow with conformer encoder and U-Net."""

    matching: FlowMatching

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        self.encoder = FlowEncoder(config)
        self.encoder_projection = nn.Linear(config.encoder.output_size, config.output_size)
        self.matching = FlowMatching(config)

    def prepare(self) -> None:
        """Compute noise and time embeddings; call once after loading the weights."""
        self.matching.prepare(self.config.output_size)

    def blank_memory(self) -> FlowMemory:
        return BlankMemory()

    @torch.no_grad()
    def begin(self, batch: FlowBatch, memory: SolverMemory) -> SolverState:
        ratio = self.config.token_mel_ratio
        frame_bias = self.attention_bias(batch, ratio)
        conditions = self.conditions(batch, frame_bias, encoder_of(memory))
        return self.matching.begin(batch.starts * ratio, conditions, frame_bias, memory)

    @torch.no_grad()
    def whole_utterance(self, batch: FlowBatch, max_scores: int) -> Steps[Tensor]:
        memory = BlankMemory()
        conditions = yield from self._conditions(batch, None, memory.encoder(), max_scores)
        return (yield from self.matching.steps(batch.starts * self.config.token_mel_ratio, conditions, None, memory, max_scores))

    def conditions(self, batch: FlowBatch, frame_bias: Tensor, memory: EncoderMemory) -> Tensor:
        """The solver's inputs besides noise, [S, ratio * T, channels]: encoded tokens, speaker and prompt mel."""
        return finish(self._conditions(batch, (self.attention_bias(batch, 1), frame_bias), memory))

    def _conditions(
        self, batch: FlowBatch, biases: tuple[Tensor, Tensor] | None, memory: EncoderMemory, max_scores: int | None = None
    ) -> Steps[Tensor]:
        vectors = self.token_embedding(batch.token_ids)
        hidden = yield from self.encoder.steps(vectors, batch.present, batch.starts, biases, memory, max_scores)
        mu = self.encoder_projection(hidden)
        return torch.cat([mu, self.speaker(batch, mu.shape[1]), batch.prompt_mel.to(self.dtype)], dim=-1)

    @torch.no_grad()
    def encode(self, batch: FlowBatch, memory: SolverMemory) -> Tensor:
        return self.conditions(batch, self.attention_bias(batch, self.config.token_mel_ratio), encoder_of(memory))


def encoder_of(memory: SolverMemory) -> EncoderMemory:
    """The encoder's part of a memory of ``FlowNetwork``."""
    return cast(FlowMemory, memory).encoder()

"""The whole flow network: padded batches of tokens and prompt conditions in, mel frames out.

``FlowBatch`` carries the work of many sessions to the device: every tensor has a static shape given by the
number of rows, the padded number of new tokens and the width of the page table. ``stage.FlowStage`` builds and reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.config import FlowConfig
from bistream.token2mel.encoder import FlowEncoder
from bistream.token2mel.flow_matching import FlowMatching
from bistream.token2mel.memory import EncoderMemory, FlowMemory, attention_bias
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
    streaming: chunked attention (streams) or full attention (offline, ``final_mode=reference``).
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


class FlowNetwork(nn.Module):
    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.input_size)
        self.speaker_projection = nn.Linear(config.spk_embed_dim, config.output_size)
        self.encoder = FlowEncoder(config)
        self.encoder_projection = nn.Linear(config.encoder.output_size, config.output_size)
        self.matching = FlowMatching(config)

    def prepare(self) -> None:
        """Compute noise and time embeddings; call once after loading the weights."""
        self.matching.prepare(self.config.output_size)

    @property
    def dtype(self) -> torch.dtype:
        return self.token_embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.token_embedding.weight.device

    @torch.no_grad()
    def forward(self, batch: FlowBatch, memory: FlowMemory) -> Tensor:
        """Mel of the new frames, float32 [S, ratio * T, bins]; frames beyond a row's length are padding."""
        ratio = self.config.token_mel_ratio
        frame_bias = self._bias(batch, ratio)
        conditions = self.conditions(batch, frame_bias, memory.encoder())
        solved: Tensor = self.matching.solve(batch.starts * ratio, conditions, frame_bias, memory)
        return solved

    def conditions(self, batch: FlowBatch, frame_bias: Tensor, memory: EncoderMemory) -> Tensor:
        """The solver's inputs besides noise, [S, ratio * T, channels]: encoded tokens, speaker and prompt mel."""
        vectors = self.token_embedding(batch.token_ids)
        hidden = self.encoder(vectors, batch.present, batch.starts, self._bias(batch, 1), frame_bias, memory)
        mu = self.encoder_projection(hidden)
        speaker = self.speaker_projection(F.normalize(batch.speaker, dim=1).to(self.dtype))
        return torch.cat([mu, speaker[:, None, :].expand(-1, mu.shape[1], -1), batch.prompt_mel.to(self.dtype)], dim=-1)

    @torch.no_grad()
    def encode(self, batch: FlowBatch, memory: EncoderMemory) -> Tensor:
        """``conditions`` alone, for a solver of another tier."""
        return self.conditions(batch, self._bias(batch, self.config.token_mel_ratio), memory)

    def _bias(self, batch: FlowBatch, ratio: int) -> Tensor:
        """The additive attention mask at ``ratio`` frames per token."""
        lookahead = self.config.pre_lookahead_len
        return attention_bias(
            batch.lengths * ratio,
            batch.context_chunks,
            frames=(batch.token_ids.shape[1] - LOOKAHEAD_HISTORY_TOKENS - lookahead) * ratio,
            table_chunks=batch.table_chunks,
            chunk_frames=self.config.encoder.static_chunk_size * ratio,
            left_context_chunks=batch.left_context_chunks,
            streaming=batch.streaming,
            dtype=self.dtype,
        )

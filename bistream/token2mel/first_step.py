"""The estimator's unconditioned velocities in the first solver step: the same for all sessions, so computed once.

The solver starts from noise that is fixed per frame, counted from the start of the prompt, and in the first step the unconditioned
half of guidance has no other input. A frame's velocity then depends on its position alone and, in an incomplete chunk, on how many
of the chunk's tokens are known: a chunk of 25 tokens has 25 forms, of 2, 4 ... 50 frames. The table saves a twentieth of the
solver's work. A start that finds the first minute of it on disk does not compute it (``prepare``). Used by ``cuda.runner``; the plain
network computes everything, and tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bistream.checkpoints.config import FlowConfig
from bistream.gpu import kept_tensors
from bistream.store.fingerprint import Fingerprint
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.flow_matching import FlowMatching
from bistream.token2mel.sizes import CONV_HISTORY_FRAMES, form_offset

FIRST_CHUNKS = 60  # computed at startup: a minute of prompt and speech; later ones when a session first reaches them
KIND = "first-step"  # of what is kept for later starts: 100 MB at full size, nearly all of it the context that later chunks attend to
_VELOCITIES, _ATTENDED, _TAIL = "velocities", "attended.", "tail."
_MAX_ROWS = 25 * 800  # frames of all forms of one evaluation, context included: 1.3 GB of working memory at full size


class FirstStep:
    """velocities: float32 [chunks * rows_per_chunk, bins], the forms of each chunk one after another. Not thread-safe.

    max_chunks: None for the longest session; smaller in tests.
    """

    def __init__(self, config: FlowConfig, matching: FlowMatching, left_context_chunks: int, max_chunks: int | None = None) -> None:
        self._matching = matching
        self._chunk_tokens, self._ratio = config.chunk_tokens, config.token_mel_ratio
        self._conditions = config.estimator.in_channels - config.output_size
        frames = self._chunk_tokens * self._ratio
        self.max_chunks = max_chunks or -(-MAX_FRAMES // frames)
        self.rows_per_chunk = form_offset(self._chunk_tokens + 1, self._ratio)
        self.velocities = torch.zeros(self.max_chunks * self.rows_per_chunk, config.output_size, device=matching.noise.device)
        self._memory = _ChunkMemory((left_context_chunks or self.max_chunks) * frames)
        self._chunks = 0

    def prepare(self, chunks: int, facts: Fingerprint | None) -> None:
        """``extend``, or what an earlier start has kept of that. facts: on what the velocities depend beside ``chunks`` and the context;
        None: nothing is kept."""
        known = facts and Fingerprint({**facts.facts, "chunks": str(chunks), "context": str(self._memory.capacity)})
        if known is not None and (kept := kept_tensors.recall(KIND, known)) is not None and self._restore(kept):
            return
        self.extend(chunks)
        if known is not None:
            kept_tensors.keep(KIND, known, self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        return {_VELOCITIES: self.velocities[: self._chunks * self.rows_per_chunk], **self._memory.tensors()}

    @torch.no_grad()
    def _restore(self, kept: Mapping[str, Tensor]) -> bool:
        """Take what ``_tensors`` gave, unless it was of other sizes; the table must be empty."""
        velocities = kept.get(_VELOCITIES)
        if velocities is None or velocities.shape[1:] != self.velocities.shape[1:] or len(velocities) % self.rows_per_chunk:
            return False
        if len(velocities) > len(self.velocities):
            return False
        self.velocities[: len(velocities)] = velocities.to(self.velocities.device)
        self._memory.restore(kept, self.velocities.device)
        self._chunks = len(velocities) // self.rows_per_chunk
        return True

    @torch.no_grad()
    def extend(self, chunks: int) -> None:
        """Compute those of the first ``chunks`` chunks that are missing."""
        while self._chunks < min(chunks, self.max_chunks):
            self._compute(self._chunks)
            self._chunks += 1

    def _compute(self, chunk: int) -> None:
        """All forms of a chunk, in batches; the last one, the complete chunk, is stored as context of the next chunk."""
        count, frames = self._chunk_tokens, self._chunk_tokens * self._ratio
        forms = max(1, _MAX_ROWS // (self._memory.context_frames + frames))
        first = chunk * self.rows_per_chunk
        for begin in range(1, count + 1, forms):
            known = range(begin, min(begin + forms, count + 1))
            self._memory.keeps = known[-1] == count
            found = self._evaluate(chunk, known)
            rows = torch.cat([velocities[: self._ratio * tokens] for tokens, velocities in zip(known, found, strict=True)])
            at = first + form_offset(begin, self._ratio)
            self.velocities[at : at + len(rows)] = rows.float()

    def _evaluate(self, chunk: int, known: range) -> Tensor:
        """Velocities [forms, frames of a chunk, bins] where the first ``known`` tokens of the chunk are known."""
        dtype, device = self._matching.time_biases.dtype, self.velocities.device
        frames, context = self._chunk_tokens * self._ratio, self._memory.context_frames
        place = torch.arange(chunk * frames, (chunk + 1) * frames, device=device).clamp_(max=MAX_FRAMES - 1)
        blank = torch.zeros(frames, self._conditions, dtype=dtype, device=device)
        inputs = torch.cat([self._matching.noise[place].to(dtype), blank], dim=1).expand(len(known), -1, -1)
        ends = self._ratio * torch.tensor(known, device=device)
        hidden = torch.arange(frames, device=device)[None, :] >= ends[:, None]
        bias = torch.zeros(len(known), context + frames, dtype=dtype, device=device)
        bias[:, context:].masked_fill_(hidden, float("-inf"))
        bias = bias[:, None, None, :].expand(-1, -1, frames, -1)
        found: Tensor = self._matching.estimator(inputs, self._matching.time_biases[:1], bias, self._memory)
        return found


class _ChunkMemory:
    """``StepMemory`` of forms that share their left context, at most ``capacity`` frames, allocated on first use.

    keeps: whether the last form of the next evaluation is a complete chunk, to be stored.
    """

    def __init__(self, capacity: int) -> None:
        self.keeps = False
        self.context_frames = self._kept_frames = 0
        self.capacity = capacity
        self._attended: list[Tensor] = []  # of each transformer block: [capacity, width]
        self._tails: list[Tensor] = []  # of each convolution: [1, history, channels]
        self._block = self._conv = 0

    def tensors(self) -> dict[str, Tensor]:
        """What later chunks need."""
        attended = {f"{_ATTENDED}{index}": stored[: self.context_frames] for index, stored in enumerate(self._attended)}
        return attended | {f"{_TAIL}{index}": tail for index, tail in enumerate(self._tails)}

    def restore(self, kept: Mapping[str, Tensor], device: torch.device) -> None:
        """Take what ``tensors`` gave."""
        for stored in _numbered(kept, _ATTENDED):
            self.context_frames = self._kept_frames = len(stored)
            attended = torch.zeros(self.capacity, stored.shape[1], dtype=stored.dtype, device=device)
            attended[: len(stored)] = stored.to(device)
            self._attended.append(attended)
        self._tails = [tail.to(device) for tail in _numbered(kept, _TAIL)]

    def extend_conv(self, x: Tensor) -> Tensor:
        if self._conv == len(self._tails):
            self._tails.append(x.new_zeros(1, CONV_HISTORY_FRAMES, x.shape[2]))
        extended = torch.cat([self._tails[self._conv].expand(len(x), -1, -1), x], dim=1)
        if self.keeps:
            self._tails[self._conv] = x[-1:, -CONV_HISTORY_FRAMES:].clone()
        self._conv += 1
        return extended

    def extend_attention(self, x: Tensor) -> Tensor:
        if self._block == len(self._attended):
            self._attended.append(x.new_zeros(self.capacity, x.shape[2]))
        stored = self._attended[self._block]
        extended = torch.cat([stored[: self.context_frames].expand(len(x), -1, -1), x], dim=1)
        if self.keeps:
            kept = extended[-1, -self.capacity :]
            stored[: len(kept)] = kept
            self._kept_frames = len(kept)
        self._block += 1
        return extended

    def end_step(self) -> None:
        if self.keeps:
            self.context_frames = self._kept_frames
        self._block = self._conv = 0


def _numbered(tensors: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    """Those with this prefix in the order of their numbers."""
    return [tensors[f"{prefix}{index}"] for index in range(sum(name.startswith(prefix) for name in tensors))]

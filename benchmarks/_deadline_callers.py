"""A caller of the simulation in ``_deadline_load``, and the service times that were measured on one H200 (docs/log.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bistream.orchestration.hop_policy import HopPolicy, HopProgress
from bistream.rates import CHUNK_TOKENS, LOOKAHEAD_TOKENS, SPEECH_TOKENS_PER_SECOND
from bistream.text2token.sequence import SequenceRecord

TOKEN_S = 1 / SPEECH_TOKENS_PER_SECOND
WITHHELD_TOKENS = LOOKAHEAD_TOKENS + 4  # lookahead of the flow; eight mel frames of the vocoder
LM_STEP_S, LM_ROW_S = 0.37e-3, 4.7e-6
BATCH_S, FIRST_HOP_S, CHUNK_S = 10.5e-3, 0.9e-3, 1.1e-3
VOCODER_SHARE = 0.06  # of a batch, after the last solver step
STEPS = 10
STEP_LOOK_S = 0.05e-3  # waiting for the device and deciding, after each step of a batch that may be interrupted; assumed
WAY_S = 1.0e-3
PROMPT_TOKENS, PROMPT_IDS = 125, 40
POLICY = HopPolicy()


@dataclass(eq=False)
class Caller:
    """One session. deadline of its listener: ``plays_until_s``."""

    name: str
    began_s: float
    total: int
    chunks_join: bool = False
    received: int = 0
    sent: int = 0
    is_waiting: bool = False  # its hop is under way
    asked_s: float = 0.0
    latency_s: float = 0.0
    look_at_tokens: int = 0
    first_audio_s: float | None = None
    plays_until_s: float = 0.0
    late_s: float = 0.0
    sequence: SequenceRecord | None = None

    def progress(self, now: float) -> HopProgress:
        buffer_s = max(0.0, self.plays_until_s - now) if self.first_audio_s is not None else 0.0
        has_ended = self.received == self.total
        return HopProgress(PROMPT_TOKENS, self.received, self.sent, has_ended, buffer_s, self.latency_s, chunks_join=self.chunks_join)

    def audible(self, sent: int) -> int:
        return sent if sent == self.total else max(0, sent - WITHHELD_TOKENS)

    def computed_chunks(self, count: int) -> float:
        """From the last boundary whose state is stored to the end of what is spoken."""
        position = PROMPT_TOKENS + max(0, self.sent - LOOKAHEAD_TOKENS)
        end = PROMPT_TOKENS + self.sent + count - (0 if self.sent + count == self.total else LOOKAHEAD_TOKENS)
        return (end - position // CHUNK_TOKENS * CHUNK_TOKENS) / CHUNK_TOKENS


@dataclass(frozen=True)
class Hop:
    caller: Caller
    count: int
    arrived_s: float


def batch_seconds(hops: Sequence[Hop]) -> float:
    """As measured: 11.3 ms for one first hop and 68 for 64, 81 for 64 chunks."""
    first = sum(hop.caller.sent == 0 for hop in hops)
    return BATCH_S + FIRST_HOP_S * first + CHUNK_S * sum(hop.caller.computed_chunks(hop.count) for hop in hops if hop.caller.sent)


@dataclass(frozen=True)
class DitBatches:
    """CosyVoice3: 14.7 ms for one first hop and 166 for 64; 219 for 64 chunks with ten before each, whose keys and values are made anew.

    vocoder_s: for each chunk.
    """

    vocoder_s: float = 0.16e-3
    flow_s: float = 1.16e-3
    stored_s: float = 0.194e-3  # for each chunk that is stored, of the session's own speech: the voice is shared

    def __call__(self, hops: Sequence[Hop]) -> float:
        return BATCH_S + sum(self._seconds(hop.caller, hop.count) for hop in hops)

    def _seconds(self, caller: Caller, count: int) -> float:
        if caller.sent == 0:  # two tiles of a chunk each: the rest of the voice, and what is new
            return 2 * self.flow_s + 0.8 * self.vocoder_s
        return caller.computed_chunks(count) * (self.flow_s + self.vocoder_s) + caller.sent / CHUNK_TOKENS * self.stored_s

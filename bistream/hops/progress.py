"""What ``policy.py`` reads and answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HopProgress:
    """Progress of one session between two hops (``due_hop`` is not called while a hop is being computed), since its last flush.

    prompt_tokens: speech tokens of its voice prompt. received_tokens: speech tokens the language model has produced.
    sent_tokens: those already in hops, lookahead included. has_ended: the language model has ended.
    playback_buffer_s: unplayed audio at the listener. hop_latency_s: how long the session's last hop took, queueing included.
    is_whole: the language model does not speak in blocks: all text was in the first request, or it never does (``interleaved``).
    is_resting: the language model waits for text.
    next_block_s: until the text of the next block is expected; 0.0: it is there; None: nobody knows. block_every_s: how often the text of
    a block comes; None: nobody knows.
    waited_s: since the tokens of the first hop were there.
    chunks_join: rule 7 applies.
    speed: of the speech from here on: 2 where a token is heard for half of its usual time. start_speed: with which the session began; it
    counts for the first hop, and does not change what that was.
    """

    prompt_tokens: int
    received_tokens: int
    sent_tokens: int
    has_ended: bool
    playback_buffer_s: float = 0.0
    hop_latency_s: float = 0.0
    is_whole: bool = True
    is_resting: bool = False
    next_block_s: float | None = None
    block_every_s: float | None = None
    waited_s: float = 0.0
    chunks_join: bool = False
    speed: float = 1.0
    start_speed: float = 1.0

    @property
    def pending_tokens(self) -> int:
        return self.received_tokens - self.sent_tokens


@dataclass(frozen=True)
class DueHop:
    """tokens: the lookahead included. is_final: it is the session's last one. lookahead_tokens: of them; None: as many as usual.
    is_flush: it is the last one of a sentence, though not of the session (rule 6)."""

    tokens: int
    is_final: bool = False
    lookahead_tokens: int | None = None
    is_flush: bool = False

    @classmethod
    def flush(cls, tokens: int) -> DueHop:
        return cls(tokens, lookahead_tokens=0, is_flush=True)

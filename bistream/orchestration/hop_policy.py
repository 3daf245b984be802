"""Decides when a session's next hop is due and how many speech tokens it takes. Pure arithmetic on one session's progress; no torch.

In: ``HopProgress`` of one session. Out: a number of tokens, or None to wait. Called by the orchestrator whenever tokens arrive, a
hop is done, the language model ends, or ``recheck_after_s`` has passed. There is no state between calls: sessions cannot
influence each other.

The rules, with B seconds of unplayed audio at the listener (a token is 40 ms of audio, so 25 B tokens):

1. The first hop is small (``first_hop_tokens`` spoken plus the flow's 3 lookahead tokens) and waits only for these tokens.
2. A later hop takes up to 25 B tokens: a server that keeps up computes a hop in less time than it plays, so the hop is done
   before the listener's buffer underruns. A hop can be about as long as the buffered audio, so hops grow (15, 25, 50, 100)
   when the language model is fast and stay small when the buffer is low.
3. A later hop ends on a multiple of 25 tokens counted from the start of the voice prompt, where the flow commits its caches;
   the next hop recomputes the tokens after such a boundary (up to 24 of them, about doubling the cost of a small hop).
   While the listener has audio left, the policy waits for the next boundary that is at least ``min_hop_tokens`` away; when
   the buffer falls to ``urgent_buffer_s`` plus the latency of a hop, the available tokens go out, on a boundary or not. The
   first hop ignores boundaries: up to 24 more tokens would delay the first sound by as many steps of the language model.
4. When the language model has ended, all remaining tokens go out in one hop if rule 2 allows that many (plus
   ``min_hop_tokens``, so that no tiny hop remains); otherwise a hop up to a boundary goes first. The rest is due again
   immediately: after the end the answer is never None, and the last hop may be empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from bistream.rates import CHUNK_TOKENS, LOOKAHEAD_TOKENS, SPEECH_BLOCK_TOKENS, SPEECH_TOKENS_PER_SECOND

_INSTANT_S = 1e-6  # step just past a threshold


@dataclass(frozen=True)
class HopProgress:
    """Progress of one session between two hops (``next_hop`` is not called while a hop is being computed).

    prompt_tokens: speech tokens of its voice prompt. received_tokens: speech tokens the language model has produced.
    sent_tokens: those already in hops, lookahead included. has_ended: the language model has ended.
    playback_buffer_s: unplayed audio at the listener. hop_latency_s: how long the session's last hop took, queueing included.
    """

    prompt_tokens: int
    received_tokens: int
    sent_tokens: int
    has_ended: bool
    playback_buffer_s: float = 0.0
    hop_latency_s: float = 0.0

    @property
    def pending_tokens(self) -> int:
        return self.received_tokens - self.sent_tokens

    @property
    def position(self) -> int:
        """Tokens with audio, counted from the start of the prompt: those sent, without the lookahead."""
        return self.prompt_tokens + max(0, self.sent_tokens - LOOKAHEAD_TOKENS)


@dataclass(frozen=True)
class HopPolicy:
    """Settings of the rules above. Token counts exclude the lookahead."""

    first_hop_tokens: int = SPEECH_BLOCK_TOKENS
    min_hop_tokens: int = 10
    max_hop_tokens: int = 4 * CHUNK_TOKENS
    urgent_hop_tokens: int = 5
    urgent_buffer_s: float = 0.25

    def next_hop(self, progress: HopProgress) -> int | None:
        """Tokens to send now, the lookahead included; None: wait.

        The hop is the session's final one when the language model has ended and no tokens remain after it; it may then be 0.
        """
        target = self._target(progress, progress.playback_buffer_s)
        pending = progress.pending_tokens
        if progress.has_ended:
            return pending if pending <= target + self.min_hop_tokens else target
        if pending >= target:
            return target
        is_urgent = progress.playback_buffer_s <= self._urgent_s(progress)
        if progress.sent_tokens and is_urgent and pending >= self.urgent_hop_tokens:
            return pending
        return None

    def recheck_after_s(self, progress: HopProgress) -> float | None:
        """Seconds until the answer changes from None to a hop without further tokens; None: never.

        That is when the buffer becomes urgently low, or low enough for the boundary that the tokens already reach.
        """
        if progress.sent_tokens == 0 or self.next_hop(progress) is not None:
            return None
        thresholds = [self._urgent_s(progress) - _INSTANT_S] if progress.pending_tokens >= self.urgent_hop_tokens else []
        reached = self._target(progress, 0.0)
        if progress.pending_tokens >= reached:
            while progress.pending_tokens >= reached + CHUNK_TOKENS:
                reached += CHUNK_TOKENS
            thresholds.append((reached + CHUNK_TOKENS) / SPEECH_TOKENS_PER_SECOND - _INSTANT_S)
        if not thresholds:
            return None
        return max(0.0, progress.playback_buffer_s - max(thresholds))

    def wanted_tokens(self, progress: HopProgress) -> int:
        """Tokens still missing for the nearest hop; a chunk if there are enough already, as nothing waits for more."""
        missing = self._target(progress, 0.0) - progress.pending_tokens
        return missing if missing > 0 else CHUNK_TOKENS

    def _target(self, progress: HopProgress, buffer_s: float) -> int:
        """Tokens of the preferred hop: up to the furthest boundary that the buffer allows, at least to the nearest one."""
        if progress.sent_tokens == 0:
            return self.first_hop_tokens + LOOKAHEAD_TOKENS
        position = progress.position
        reach = min(self.max_hop_tokens, int(buffer_s * SPEECH_TOKENS_PER_SECOND))
        nearest = -(-(position + self.min_hop_tokens) // CHUNK_TOKENS) * CHUNK_TOKENS
        furthest = (position + reach) // CHUNK_TOKENS * CHUNK_TOKENS
        boundary = max(nearest, furthest)
        return boundary - progress.prompt_tokens + LOOKAHEAD_TOKENS - progress.sent_tokens

    def _urgent_s(self, progress: HopProgress) -> float:
        return self.urgent_buffer_s + progress.hop_latency_s

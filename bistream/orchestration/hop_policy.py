"""When the next hop of a session is due and how many speech tokens it takes. Pure arithmetic on one session's progress; no torch.

In: ``HopProgress`` of one session. Out: a number of tokens, or None to wait. Called by the orchestrator whenever tokens arrive, a
hop is done, the language model ends, or ``recheck_after_s`` has passed. Nothing is remembered between calls: two sessions
cannot influence each other.

The rules, with B seconds of unplayed audio at the listener (a token is 40 ms of audio, so 25 B tokens):

1. The first hop is small (``first_hop_tokens`` to speak and the 3 that the flow looks ahead) and never waits for anything else.
2. A later hop takes up to 25 B tokens: a server that keeps up at all computes a hop in less time than it plays, so the hop is
   done before the listener runs dry. Each hop can then be about as long as all that is buffered, hence hops grow by
   themselves (15, 25, 50, 100) when the language model is fast, and stay small when the listener is short of audio.
3. A later hop ends on a multiple of 25 tokens counted from the start of the voice prompt. There the flow commits its caches;
   the tokens after such a boundary are computed again by the next hop (up to 24 of them, about doubling a small hop's cost).
   The next boundary that is at least ``min_hop_tokens`` away is waited for as long as the listener has audio left; when that
   gets short (``urgent_buffer_s`` and the time a hop takes), what is there goes out, on the boundary or not. The first hop
   ignores the boundaries: waiting up to 24 tokens more would delay the first sound by as many steps of the language model.
4. When the language model has ended, everything left goes out at once if rule 2 allows that much (an extra ``min_hop_tokens``
   is allowed, so that no tiny hop remains); otherwise a hop up to a boundary goes first. Whatever is left is then due at
   once again: after the end no answer is None, and the last hop may be empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from bistream.rates import CHUNK_TOKENS, LOOKAHEAD_TOKENS, SPEECH_BLOCK_TOKENS, SPEECH_TOKENS_PER_SECOND

_INSTANT_S = 1e-6  # past a threshold, not on it


@dataclass(frozen=True)
class HopProgress:
    """Where one session stands between two hops (``next_hop`` is not asked while a hop is being computed).

    prompt_tokens: speech tokens of its voice prompt. received_tokens: speech tokens the language model has produced.
    sent_tokens: how many of them went into hops, lookahead included. has_ended: the language model has ended.
    playback_buffer_s: audio the listener has left. hop_latency_s: how long the session's last hop took, queueing included.
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
        """Tokens with audio, counted from the start of the prompt: all that were sent but the lookahead."""
        return self.prompt_tokens + max(0, self.sent_tokens - LOOKAHEAD_TOKENS)


@dataclass(frozen=True)
class HopPolicy:
    """Frozen settings; see the rules above. Tokens count what is spoken, lookahead aside."""

    first_hop_tokens: int = SPEECH_BLOCK_TOKENS
    min_hop_tokens: int = 10
    max_hop_tokens: int = 4 * CHUNK_TOKENS
    urgent_hop_tokens: int = 5
    urgent_buffer_s: float = 0.25

    def next_hop(self, progress: HopProgress) -> int | None:
        """Tokens to send now, the lookahead included; None: wait.

        The hop is the session's final one when the language model has ended and nothing remains behind it; it may then be 0.
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
        """After which time the answer changes from None to a hop though no token arrives; None: never.

        It asks for the moment at which the buffer is urgently low, or low enough for the boundary that is reached already.
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
        """How many more tokens make the nearest hop possible. With enough for it already: a chunk, nobody waits for them."""
        missing = self._target(progress, 0.0) - progress.pending_tokens
        return missing if missing > 0 else CHUNK_TOKENS

    def _target(self, progress: HopProgress, buffer_s: float) -> int:
        """Tokens of the hop we would like to make: up to the furthest boundary that the buffer allows, at least to the nearest one."""
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

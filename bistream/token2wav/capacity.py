"""Estimates the audio seconds per second that token2wav can make with full batches, from the batches it has computed. Pure.

A small batch says little: most of its time is the same for one hop and for sixty. So there are two estimates:

- full: while hops wait beyond a batch, the pace seen is the capacity. A high quantile of the last such batches is taken, never more than
  was seen. A batch that follows a full one counts from that one's end, so that steps of the background and whatever else uses the worker
  are in it.
- fitted: before that, and while no batch is full, time = fixed + marginal x audio is fitted to recent batches, without the
  slowest quarter (a new voice, a first call), and continued to a batch of the intended duration. Batches of similar sizes say little about
  the fixed part; a quarter of their time is taken for it at least, or the estimate could be what the sessions use already, and the server
  would stay as it is; three quarters at most, so the estimate is at most four times the pace seen.

Without full batches the larger of both counts for a minute: full batches of small hops show less than the server can make when listeners
have some seconds left, and small batches less than full ones.

There is no estimate before ``MIN_BATCHES``: a new server refuses nobody because of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bistream.hops.queue import fixed_and_marginal

UNKNOWN = 0.0
MIN_BATCHES = 8  # before the first estimate
MIN_FULL_BATCHES = 4  # before full batches alone decide
FULL_BATCHES = 16  # remembered: two to three seconds of saturation, after which a changed pace is known
FULL_QUANTILE = 0.75
SATURATED_S, FULL_MEMORY_S = 3.0, 60.0  # after the last full batch
FULL_SHARE = 0.5  # of the intended duration, from which a batch with hops left over is full
FITTED_BATCHES = 64
SLOWEST_SHARE = 0.25  # left out of the second fit
MIN_FIXED_SHARE, MAX_FIXED_SHARE = 0.25, 0.75
REFIT_S = 0.1

Sample = tuple[float, float]  # audio seconds of a batch, its duration


class CapacityMeter:
    """``observe`` is called by one thread; ``audio_s_per_s`` may be read by any.

    target_s: intended duration of a batch. max_hops: most hops of a batch. fixed: a capacity to report instead of the measured one;
    0: none.
    """

    def __init__(self, target_s: float, max_hops: int, fixed: float = UNKNOWN) -> None:
        self._target_s = target_s
        self._max_hops = max_hops
        self._fixed = fixed
        self._samples: deque[Sample] = deque(maxlen=FITTED_BATCHES)
        self._full: deque[float] = deque(maxlen=FULL_BATCHES)  # paces
        self._last_full_s = 0.0
        self._backlog_since_s: float | None = None  # end of the last batch, where hops were left over
        self._fitted_s = 0.0
        self.audio_s_per_s = fixed  # UNKNOWN before the first estimate

    def observe(self, audio_s: float, hops: int, began_s: float, ended_s: float, leftover: bool) -> None:
        """A batch made ``audio_s`` seconds of audio. leftover: hops that were ready did not fit into it."""
        since_s = began_s if self._backlog_since_s is None else min(began_s, self._backlog_since_s)
        self._backlog_since_s = ended_s if leftover else None
        if audio_s <= 0.0 or ended_s <= since_s:
            return
        self._samples.append((audio_s, ended_s - began_s))
        if leftover and (hops >= self._max_hops or ended_s - began_s >= FULL_SHARE * self._target_s):
            self._full.append(audio_s / (ended_s - since_s))
            self._last_full_s = ended_s
        if not self._fixed and len(self._samples) >= MIN_BATCHES and ended_s - self._fitted_s >= REFIT_S:
            self._fitted_s = ended_s
            self.audio_s_per_s = self._estimate(ended_s)

    def _estimate(self, now_s: float) -> float:
        if now_s - self._last_full_s > FULL_MEMORY_S:
            self._full.clear()
        full = sorted(self._full)[int(FULL_QUANTILE * (len(self._full) - 1))] if len(self._full) >= MIN_FULL_BATCHES else UNKNOWN
        is_saturated = now_s - self._last_full_s <= SATURATED_S
        return full if full and is_saturated else max(full, self._fitted())

    def _fitted(self) -> float:
        samples = list(self._samples)
        fixed_s, marginal = _fit(samples)
        kept = sorted(samples, key=lambda sample: sample[1] - fixed_s - marginal * sample[0])
        fixed_s, marginal = _fit(kept[: len(kept) - int(SLOWEST_SHARE * len(kept))])
        full_s = max(self._target_s, fixed_s + marginal * max(audio_s for audio_s, _ in samples))
        return (full_s - fixed_s) / (marginal * full_s)


def _fit(samples: Sequence[Sample]) -> tuple[float, float]:
    return fixed_and_marginal(samples, (MIN_FIXED_SHARE, MAX_FIXED_SHARE), unknown_share=MAX_FIXED_SHARE)

"""The simulation of ``_deadline_load`` with both processes on one GPU, where they slow each other down and may give way to each other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from benchmarks._deadline_callers import LM_ROW_S, LM_STEP_S, STEP_LOOK_S, STEPS, VOCODER_SHARE
from benchmarks._deadline_load import Batch, Load
from bistream.gpu.right_of_way import HOPS, LOOK_S, PATIENCE_S, TOKENS, Patience
from bistream.token2wav.turns import Turns

# With 64 callers on an H200 a step took 1.42 ms, and a batch of 11 hops 33 ms (docs/log.md), 0.6 and 22 alone.
TOKENS_BESIDE_HOPS, HOPS_BESIDE_TOKENS = 2.4, 1.5
CALM_PAUSE = 2.0  # as the parameter


class SharedGpuLoad(Load):
    """claims: the work that claims the GPU while somebody waits for it, so that the other's work for which nobody waits lets it pass."""

    def __init__(self, callers: int, turns: Turns, claims: Collection[str], **load: Any) -> None:
        self._claims = frozenset(claims)
        self._tokens_wait_for_hops = Patience(lambda: self._claim(HOPS), PATIENCE_S[TOKENS])
        self._hops_wait_for_tokens = Patience(lambda: self._claim(TOKENS), PATIENCE_S[HOPS])
        self._computes_urgent_hops = False
        self._looks = {TOKENS: 0, HOPS: 0}
        super().__init__(callers, turns, **load)

    def _claim(self, work: str) -> float | None:
        """Another number at every moment, as of processes that work."""
        is_held = self._computes_urgent_hops if work == HOPS else self._scheduler.somebody_waits(self._now)
        return self._now if is_held and work in self._claims else None

    def _look_again(self, work: str, after_s: float, look: Callable[[], None]) -> None:
        """The newest look counts."""
        self._looks[work] += 1
        number = self._looks[work]
        self._at(self._now + after_s, lambda: look() if number == self._looks[work] else None)

    # The language model

    def _lm_step(self) -> None:
        if self._lm_is_computing:
            return
        was_calm = self._scheduler.is_calm(self._now)
        if was_calm and self._tokens_wait_for_hops.waits(self._now):
            self._look_again(TOKENS, LOOK_S, self._lm_step)
            return
        if (plan := self._scheduler.schedule(self._now)) is None:
            return
        self._tokens_wait_for_hops.works()
        self._looks[TOKENS] += 1
        self._lm_is_computing = True
        took_s = (LM_STEP_S + LM_ROW_S * plan.num_rows) * (TOKENS_BESIDE_HOPS if self._is_computing else 1.0)

        def done() -> None:
            self._lm_is_computing = False
            self._apply(plan)
            if was_calm and self._scheduler.is_calm(self._now):
                self._look_again(TOKENS, CALM_PAUSE * took_s, self._lm_step)
            else:
                self._lm_step()

        self._at(self._now + took_s, done)

    # token2wav

    def _work(self) -> None:
        self._is_computing = False
        self._looks[HOPS] += 1
        standing = None if self._started is None else self._started.standing
        if self.turns.may_wait(standing, self._queue, self._now) and self._hops_wait_for_tokens.waits(self._now):
            self._look_again(HOPS, LOOK_S, self._work)
            return
        self._hops_wait_for_tokens.works()
        super()._work()

    def _compute(self, batch: Batch) -> None:
        self._computes_urgent_hops = True
        began_s = self._now

        def ended() -> None:
            self._computes_urgent_hops = False
            batch.seconds = self._now - began_s
            self._done(batch)

        self._slices(batch.seconds, STEPS, ended)

    def _step(self, batch: Batch) -> None:
        self._is_computing = True
        batch.standing.steps_left -= 1
        seconds, began_s = batch.seconds * (1.0 - VOCODER_SHARE) / STEPS + STEP_LOOK_S, self._now

        def ended() -> None:
            batch.took_s += self._now - began_s
            if batch.standing.steps_left:
                self._work()
                return
            self._started = None
            batch.seconds = batch.took_s
            self._done(batch)

        self._slices(seconds if batch.standing.steps_left else seconds + batch.seconds * VOCODER_SHARE, 1, ended)

    def _slices(self, seconds: float, count: int, ended: Callable[[], None]) -> None:
        """Each is as slow as what runs when it begins makes it."""
        if not count:
            ended()
            return
        slice_s = seconds / count * (HOPS_BESIDE_TOKENS if self._lm_is_computing else 1.0)
        self._at(self._now + slice_s, lambda: self._slices(seconds - seconds / count, count - 1, ended))


def one_gpu(turns: Callable[[], Turns]) -> dict[str, Callable[..., Load]]:
    """Loads by what claims the GPU."""

    def load(*claims: str) -> Callable[..., Load]:
        return lambda callers, **settings: SharedGpuLoad(callers, turns(), claims, **settings)

    return {"no claims": load(), "hops claim": load(HOPS), "both claim": load(HOPS, TOKENS)}

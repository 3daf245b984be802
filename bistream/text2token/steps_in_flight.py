"""The steps that the device computes, and what becomes of a step that cannot be started. Called by ``torch_engine.py``, on its thread.

A failed step is computed again, sequence by sequence, because in a batch it does not show whose failure it is. What fails alone belongs to
its sequence, which ends; the others go on with the ids that they would have got. That is sound, because ``StepRunner.run`` either leaves
nothing behind that a second run does not write again, or raises ``DeviceFailedError``. Whether the engine works at all is not concluded
from the sequences, which may all have the same fault: a step without any is computed after a failure, and if it fails, the engine has.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bistream.text2token.sequence import RunningTurn, SequenceRecord, StepPlan
from bistream.text2token.step_runner import DeviceFailedError, SampledRows, StepRunner

logger = logging.getLogger(__name__)

NO_ROWS = StepPlan((), (), (), ())


@dataclass(frozen=True)
class StepResult:
    """head_rows and places: see ``Scheduler.apply``. failed: turns that could not be computed; the plan does not sample them."""

    plan: StepPlan
    head_rows: Sequence[int]
    places: Sequence[int] | None = None
    failed: tuple[tuple[SequenceRecord, RunningTurn], ...] = ()


class StepsInFlight:
    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._started: deque[tuple[StepPlan, SampledRows]] = deque()

    def __bool__(self) -> bool:
        return bool(self._started)

    def clear(self) -> None:
        """None of them will return."""
        self._started.clear()

    def advance(self, plan: StepPlan | None, settles: bool) -> list[StepResult]:
        """Start a step; the results, oldest first, that had to be waited for: of the oldest step if there is no plan, too many are in
        flight or the engine settles, of all of them after a failure. What it raises is a failure of the engine."""
        results: list[StepResult] = []
        if plan is not None:
            try:
                self._started.append((plan, self._runner.run(plan)))
            except DeviceFailedError:
                raise
            except Exception:
                logger.exception("a step of the language model failed; each of its sequences is computed alone")
                results += [self._oldest() for _ in range(len(self._started))]
                results.append(self._alone(plan))
        if self._started and (plan is None or settles or len(self._started) > self._runner.run_ahead):
            results.append(self._oldest())
        return results

    def _oldest(self) -> StepResult:
        return self._read(*self._started.popleft())

    def _read(self, plan: StepPlan, sampled: SampledRows) -> StepResult:
        head_rows = sampled()
        return StepResult(plan, head_rows, self._runner.places())

    def _alone(self, plan: StepPlan) -> StepResult:
        """The sequences of a step one after the other."""
        done: list[StepResult] = []
        failed: list[tuple[SequenceRecord, RunningTurn]] = []
        for sequence, turn, part in plan.parts():
            try:
                sampled = self._runner.run(part)
            except DeviceFailedError:
                raise
            except Exception:
                logger.exception("session %s cannot be computed and ends", sequence.session_id)
                failed.append((sequence, turn))
            else:
                done.append(self._read(part, sampled))
        if failed:
            self._runner.run(NO_ROWS)()
        sampling = tuple(receiver for result in done for receiver in result.plan.sampling)
        places = [place for result in done for place in result.places or ()]
        return StepResult(replace(plan, sampling=sampling), [row for result in done for row in result.head_rows], places, tuple(failed))

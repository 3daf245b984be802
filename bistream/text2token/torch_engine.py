"""The main engine: resident paged KV, continuous batching, its own step loop. Implements ``engine.Engine``.

In: turns of ids from any thread. Out: sampled ids to the turns' sinks, from the engine's thread. One lock guards the
scheduler and the outbox and is never held while the model runs or a sink is called:

    any thread     open, turn, cancel, close: change the scheduler under the lock, wake the engine's thread
    engine thread  schedule (lock) -> run (no lock) -> apply (lock) -> deliver the outbox (no lock), repeated while there
                   is work; otherwise it waits on the condition

With ``threaded=False`` there is no thread; the owner calls ``step()`` until it returns False (tests, offline use).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.errors import EngineError, ShuttingDownError
from bistream.gpu.claims import LOOK_S, TOKENS, GpuClaims, gpu_claims
from bistream.gpu.device import open_device, resolve_device
from bistream.gpu.tier import TierChoice
from bistream.metrics.recorder import Recorder
from bistream.text2token.engine import (
    FAILED_SENTENCE,
    EngineStats,
    SamplingSpec,
    TurnLimits,
    TurnSink,
)
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.fidelity import within_bounds
from bistream.text2token.sampler import DEFAULT_HISTORY, check_spec
from bistream.text2token.scheduler import Scheduler
from bistream.text2token.sequence import SequenceRecord, TurnUpdate
from bistream.text2token.step_metrics import StepMetrics
from bistream.text2token.step_runner import StepRunner
from bistream.text2token.step_runners import language_model_tier, load_step_runner
from bistream.text2token.steps_in_flight import StepsInFlight
from bistream.text2token.turn_updates import TurnUpdates
from bistream.text2token.urgency import Demand

logger = logging.getLogger(__name__)


class TorchSequence:
    """An ``EngineSequence``: the handle of one ``SequenceRecord`` of the scheduler. Made by ``TorchEngine.open``."""

    def __init__(self, engine: TorchEngine, record: SequenceRecord) -> None:
        self._engine = engine
        self._record = record

    def turn(self, append_ids: Sequence[int], limits: TurnLimits, sink: TurnSink) -> None:
        self._engine.begin_turn(self._record, append_ids, limits, sink)

    def cancel(self) -> None:
        self._engine.cancel_turn(self._record)

    def close(self) -> None:
        self._engine.close_sequence(self._record)

    def demand(self, slack_s: float, wanted_tokens: int) -> None:
        self._engine.demand(self._record, slack_s, wanted_tokens)

    def kept(self, count: int) -> None:
        self._engine.kept(self._record, count)


class TorchEngine:
    def __init__(
        self,
        runner: StepRunner,
        settings: EngineSettings,
        threaded: bool = True,
        tiers: tuple[TierChoice, ...] = (),
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        gpu_claims: GpuClaims | None = None,
    ) -> None:
        """tiers: the tier that serves each network of ``runner``, for metrics and logs. recorder: takes what the steps count.

        gpu_claims: claimed while somebody waits for the next step; closed with the engine's thread.
        """
        self.tiers = tiers
        self.longest_sequence = settings.longest_sequence
        self.space = runner.space
        self.settings = settings
        self._scheduler = Scheduler(settings, runner.space)
        self._runner = runner
        self._steps = StepsInFlight(runner)
        self._changed = threading.Condition()
        self._outbox = TurnUpdates(self._changed, self._scheduler.fail)
        self._clock = clock
        self._metrics = StepMetrics(recorder or Recorder())
        self._metrics.watch(self.stats, settings.block_size)
        self._closing, self.healthy = False, True
        self._pauses_until_s = 0.0  # unless somebody waits
        self._claims = gpu_claims or GpuClaims()
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._loop, name="text2token-engine", daemon=True)
            self._thread.start()

    @classmethod
    def from_config(cls, config: RuntimeConfig, recorder: Recorder | None = None) -> TorchEngine:
        """Load ``llm.pt`` of ``config.model_dir`` and start. Raises ``CheckpointError`` or ``ConfigError`` naming the problem."""
        sizes = read_config(config.model_dir).language_model
        open_device(resolve_device(config.device))
        config = within_bounds(config, sizes)
        choice = language_model_tier(config, sizes)
        runner = load_step_runner(config, sizes, choice.tier)
        shared = gpu_claims(resolve_device(config.device), TOKENS) if config.idle_pause > 0.0 else None
        return cls(runner, runner.settings, tiers=(choice,), recorder=recorder, gpu_claims=shared)

    # -- any thread --------------------------------------------------------------------------------------------------

    def open(self, session_id: str, spec: SamplingSpec, max_ids: int) -> TorchSequence:
        check_spec(spec, DEFAULT_HISTORY, session_id)
        with self._changed:
            self._check_serving()
            record = self._scheduler.open(session_id, spec, max_ids)
            self._metrics.opened(record)
            return TorchSequence(self, record)

    def begin_turn(self, sequence: SequenceRecord, append_ids: Sequence[int], limits: TurnLimits, sink: TurnSink) -> None:
        with self._changed:
            self._check_serving()
            self._scheduler.begin_turn(sequence, append_ids, limits, sink)
            self._metrics.turn_begun(sequence)
            self._changed.notify_all()

    def demand(self, sequence: SequenceRecord, slack_s: float, wanted_tokens: int) -> None:
        """See ``engine.TakesDemands``."""
        with self._changed:
            self._scheduler.demand(sequence, Demand.of(slack_s, wanted_tokens, self._clock()))
            self._changed.notify_all()

    def kept(self, sequence: SequenceRecord, count: int) -> None:
        """See ``engine.TakesDemands``."""
        with self._changed:
            if sequence.demand is not None:
                sequence.demand.sampled(1.0 / self.space.tokens_per_second, -count)

    def cancel_turn(self, sequence: SequenceRecord) -> None:
        with self._changed:
            self._post(self._scheduler.cancel(sequence))

    def close_sequence(self, sequence: SequenceRecord) -> None:
        with self._changed:
            self._post(self._scheduler.close(sequence))
            self._metrics.closed(sequence)

    def stats(self) -> EngineStats:
        with self._changed:
            return self._scheduler.stats()

    def check_integrity(self) -> None:
        with self._changed:
            self._scheduler.check_integrity()

    def close(self) -> None:
        """Stop the engine's thread; turns in flight end with CANCELLED. Idempotent; does not wait when called from a sink."""
        with self._changed:
            self._closing = True
            for sequence in list(self._scheduler.sequences.values()):
                self._post(self._scheduler.cancel(sequence))
            self._changed.notify_all()
        if self._thread is None:
            self._outbox.deliver()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def _check_serving(self) -> None:
        if self._closing:
            raise ShuttingDownError("The server is shutting down; use another one.")
        if not self.healthy:
            raise EngineError(FAILED_SENTENCE)

    def _post(self, update: TurnUpdate | None) -> None:
        if update is not None:
            self._outbox.add((update,))
            self._changed.notify_all()

    # -- the engine's thread -----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One iteration: schedule, run, apply, deliver. Returns False when there was nothing to do, or a pause is under way.

        What belongs to a sequence ends its turn. If anything else raises, every turn in flight ends with ERROR and the engine becomes
        unhealthy; the exception is not passed on.
        """
        try:
            with self._changed:
                if not (self._has_work or self._outbox):
                    return False
            self._compute()
        except Exception:
            self._break_down()
        self._deliver()
        return True

    def _break_down(self) -> None:
        """For the exception that is being handled."""
        logger.exception("the language model failed")
        with self._changed:
            self.healthy = False
            self._steps.clear()
            self._metrics.failed()
            self._outbox.add(self._scheduler.fail_all(FAILED_SENTENCE))

    @property
    def _has_work(self) -> bool:
        if not self.healthy or self._steps:
            return self.healthy
        now = self._clock()
        return self._scheduler.has_work(now) and self._pause_s(now) == 0.0

    def _pause_s(self, now: float) -> float:
        """For how long the GPU is left to token2wav, whose hops are what the listeners wait for once their tokens are there."""
        left = max(self._pauses_until_s - now, LOOK_S if self._claims.waits(now) else 0.0)
        return left if left > 0.0 and self._scheduler.is_idle(now) else 0.0

    def _wake_after_s(self) -> float | None:
        if not self.healthy:
            return None
        now = self._clock()
        return self._pause_s(now) or self._scheduler.wake_after_s(now)

    def _compute(self) -> None:
        """Start the next step, if any; apply the oldest result if there was none to start, too many are in flight, or a pause follows."""
        with self._changed:
            began = self._clock()
            somebody_waits = self._scheduler.somebody_waits(began)  # before the step takes new sessions up
            plan = self._scheduler.schedule(began) if self.healthy and self._pause_s(began) == 0.0 else None
            pauses = self.settings.idle_pause > 0.0 and self._scheduler.is_idle(began)
            if plan is not None:
                self._outbox.add(plan.failed)
                self._metrics.step_started(plan)
                self._claims.works()
                if somebody_waits:
                    self._claims.claim()
                else:
                    self._claims.release()
        results = self._steps.advance(plan, settles=pauses)
        if not results:
            return
        with self._changed:
            if pauses:
                now = self._clock()
                self._pauses_until_s = now + self.settings.idle_pause * (now - began)
            for result in results:
                updates = self._scheduler.apply(result.plan, result.head_rows, result.places)
                self._metrics.step_done(len(updates))
                self._outbox.add((*updates, *self._scheduler.fail_turns(result.failed)))

    def _deliver(self) -> None:
        self._outbox.deliver()

    def _loop(self) -> None:
        while True:
            try:
                if not self._wait_for_work():
                    return
            except Exception:
                self._break_down()
            self.step()

    def _wait_for_work(self) -> bool:
        """False once the engine is to close."""
        with self._changed:
            while not (self._has_work or self._outbox or self._closing):
                self._claims.release()
                self._changed.wait(self._wake_after_s())
            if self._closing and not self._outbox:
                self._claims.close()
                return False
        return True

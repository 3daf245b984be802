"""``EngineConformance`` on the torch engine (CPU, tiny random model; in its thread, and stepped by hand and running ahead) and on
the scripted fake that other tests rely on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from bistream.text2token.engine import SamplingSpec, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.sequence import StepPlan
from bistream.text2token.step_runner import EagerRunner, SampledRows
from bistream.text2token.torch_engine import TorchEngine
from tests.fakes import RecordingSink, ScriptedEngine, stopping_script
from tests.unit.text2token.engine_conformance import Bench, EngineConformance
from tests.unit.text2token.tiny import SPACE, tiny_model

SETTINGS = EngineSettings(max_sessions=6, max_rows=32, kv_cache_tokens=1024, block_size=16, max_sequence_ids=512)


class FaultyRunner:
    """An ``EagerRunner`` that can be told to fail, and that may return its results late."""

    def __init__(self, run_ahead: int = 0) -> None:
        self.run_ahead = run_ahead
        self.broken = False
        self.most_waiting = 0
        self._waiting = 0
        self._runner = EagerRunner(tiny_model(), SETTINGS, RepetitionAwareSampler())
        self.settings, self.space = self._runner.settings, self._runner.space

    def run(self, plan: StepPlan) -> SampledRows:
        if self.broken:
            raise RuntimeError("out of luck")
        sampled = self._runner.run(plan)
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)

        def wait() -> list[int]:
            self._waiting -= 1
            return sampled()

        return wait

    def break_down(self) -> None:
        self.broken = True


def stepped_bench(runner: FaultyRunner) -> Bench:
    engine = TorchEngine(tiny_model(), SETTINGS, threaded=False, runner=runner)

    def drive(sinks: Sequence[RecordingSink]) -> None:
        while any(sink.result is None for sink in sinks):
            assert engine.step(), "the engine has nothing to do, but a turn has not ended"

    return Bench(engine, drive, lambda: [engine.step(), engine.step()], runner.break_down)


def check_at_the_end(bench: Bench) -> None:
    bench.engine.close()
    bench.engine.check_integrity()


class TestTorchEngineRunningAhead(EngineConformance):
    """The host reads ids three steps late, as with a GPU."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        runner = FaultyRunner(run_ahead=3)
        bench = stepped_bench(runner)
        yield bench
        check_at_the_end(bench)
        assert runner.most_waiting <= runner.run_ahead + 1

    def test_it_does_run_ahead(self) -> None:
        runner = FaultyRunner(run_ahead=3)
        bench = stepped_bench(runner)
        bench.run(bench.engine.open("a", SamplingSpec(), 100), [1, 2, 3], TurnLimits(50, forbidden=frozenset(SPACE.specials)))
        assert runner.most_waiting == 4


class TestThreadedTorchEngine(EngineConformance):
    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        runner = FaultyRunner()
        engine = TorchEngine(tiny_model(), SETTINGS, runner=runner)
        progress = threading.Condition()
        deliver = engine._deliver

        def deliver_and_tell() -> None:
            deliver()
            with progress:
                progress.notify_all()

        engine._deliver = deliver_and_tell  # type: ignore[method-assign]

        def drive(sinks: Sequence[RecordingSink]) -> None:
            with progress:
                assert progress.wait_for(lambda: all(sink.result is not None for sink in sinks), timeout=240)

        bench = Bench(engine, drive, lambda: None, runner.break_down)
        yield bench
        check_at_the_end(bench)
        assert engine._thread is not None and not engine._thread.is_alive()


class TestScriptedEngine(EngineConformance):
    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        engine = ScriptedEngine(SPACE, stopping_script, pumped=True, max_sessions=6, max_total_ids=1024, max_sequence_ids=512)

        def drive(sinks: Sequence[RecordingSink]) -> None:
            engine.pump()
            assert all(sink.result is not None for sink in sinks)

        bench = Bench(engine, drive, lambda: engine.pump(2), engine.fail)
        yield bench
        check_at_the_end(bench)

"""``EngineConformance`` on the torch engine (CPU, tiny random model): in its thread, and stepped by hand and running ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from bistream.text2token.engine import SamplingSpec, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine
from tests.fakes import RecordingSink
from tests.unit.text2token.engine_conformance import Bench, EngineConformance, FaultyRunner, stepped_bench
from tests.unit.text2token.tiny import SPACE, tiny_model

SETTINGS = EngineSettings(max_sessions=6, max_rows=32, kv_cache_tokens=1024, block_size=16, max_sequence_ids=512)


def eager_runner(run_ahead: int) -> FaultyRunner:
    return FaultyRunner(EagerRunner(tiny_model(), SETTINGS, RepetitionAwareSampler()), run_ahead)


class TestTorchEngineRunningAhead(EngineConformance):
    """The host reads ids three steps late, as with a GPU."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        runner = eager_runner(run_ahead=3)
        bench = stepped_bench(runner)
        yield bench
        bench.engine.close()
        bench.engine.check_integrity()
        assert runner.most_waiting <= runner.run_ahead + 1

    def test_it_does_run_ahead(self) -> None:
        runner = eager_runner(run_ahead=3)
        bench = stepped_bench(runner)
        bench.run(bench.engine.open("a", SamplingSpec(), 100), [1, 2, 3], TurnLimits(50, forbidden=frozenset(SPACE.specials)))
        assert runner.most_waiting == 4


class TestThreadedTorchEngine(EngineConformance):
    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        runner = eager_runner(run_ahead=0)
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

        yield Bench(engine, drive, lambda: None, runner.break_down)
        engine.close()
        engine.check_integrity()
        assert engine._thread is not None and not engine._thread.is_alive()

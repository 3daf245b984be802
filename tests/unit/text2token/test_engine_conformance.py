"""``EngineConformance`` on the torch engine in its thread (CPU, tiny random model). ``test_graphs.py`` has it running ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine
from tests.fakes import RecordingSink
from tests.unit.text2token.engine_conformance import Bench, EngineConformance, FaultyRunner
from tests.unit.text2token.tiny import tiny_model

SETTINGS = EngineSettings(max_sessions=6, max_rows=32, kv_cache_tokens=1024, block_size=16, max_sequence_ids=512)


class TestThreadedTorchEngine(EngineConformance):
    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        runner = FaultyRunner(EagerRunner(tiny_model(), SETTINGS, RepetitionAwareSampler()))
        engine = TorchEngine(runner, SETTINGS)
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

        yield Bench(engine, drive, lambda: None, runner.break_down, SETTINGS.max_sessions)
        engine.close()
        engine.check_integrity()
        assert engine._thread is not None and not engine._thread.is_alive()

"""The engine over the fake library, and the means to drive both in step."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from bistream.metrics.recorder import Recorder
from bistream.text2token.engine import EngineSequence, TurnLimits, TurnResult
from bistream.text2token.tensorrt_llm.engine import TensorRtLlmEngine
from bistream.text2token.tensorrt_llm.library import make_llm
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds
from bistream.text2token.tensorrt_llm.sequences import Sizes
from tests.clock import ManualClock
from tests.fakes import RecordingSink
from tests.unit.text2token.engine_conformance import Bench
from tests.unit.text2token.tensorrt_llm.fake_llmapi import Choose, FakeLibrary, stopping
from tests.unit.text2token.tiny import SPACE

MERGED = MergedIds(SPACE, speech_offset=180, vocab_size=320)
SIZES = Sizes(max_sessions=6, kv_tokens=4096, max_sequence_ids=2048, tokens_per_block=16)
ROUNDS = 8  # of the loop: an answer, the task that it wakes, the turn that its sink starts, that turn's request
LONGEST_S = 120.0  # a machine may be busy; never reached where the engine works


class PortBench:
    """``library.step`` and the engine's loop take turns, so what a test sees does not depend on time."""

    def __init__(
        self,
        choose: Choose | None = None,
        sizes: Sizes = SIZES,
        merged: MergedIds = MERGED,
        recorder: Recorder | None = None,
        **options: Any,
    ) -> None:
        self.clock, self._max_sessions = ManualClock(), sizes.max_sessions
        self.library = FakeLibrary(merged, stopping(merged) if choose is None else choose, **options)
        llm = make_llm(self.library, "merged", "bfloat16", sizes)
        self.engine = TensorRtLlmEngine(self.library, llm, merged, sizes, retention_s=60.0, recorder=recorder, clock=self.clock)

    def bench(self) -> Bench:
        def fail() -> None:
            self.library.is_broken = True

        return Bench(self.engine, self.drive, lambda: [self.step(), self.step()], fail, self._max_sessions, is_seeded=False)

    def step(self) -> bool:
        done = self.library.step()
        self.settle()
        return done

    def settle(self) -> None:
        """Let the engine's loop do what it has to do."""
        done = threading.Event()

        def round(rounds: int) -> None:
            if rounds == 0:
                done.set()
            else:
                self.engine._loop.call_soon(round, rounds - 1)

        if not self.engine._stopped:
            self.engine._loop.call_soon_threadsafe(round, ROUNDS)
            assert done.wait(LONGEST_S)

    def drive(self, sinks: Sequence[RecordingSink]) -> None:
        deadline = time.monotonic() + LONGEST_S
        self.settle()
        while any(sink.result is None for sink in sinks):
            self.step()
            assert time.monotonic() < deadline, "the engine has nothing to do, but a turn has not ended"

    def run(self, sequence: EngineSequence, append_ids: Sequence[int], limits: TurnLimits) -> tuple[list[int], TurnResult]:
        return self.bench().run(sequence, append_ids, limits)

    def close(self) -> None:
        self.engine.close()
        self.engine.check_integrity()
        assert not self.engine._thread.is_alive() and self.library.is_shut_down

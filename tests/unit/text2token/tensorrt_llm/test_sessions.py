"""Many threads on one engine."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

from bistream.errors import BusyError
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits
from bistream.text2token.tensorrt_llm.engine import TensorRtLlmEngine
from tests.fakes import WaitableSink
from tests.unit.text2token.tensorrt_llm.bench import LONGEST_S, SIZES, PortBench
from tests.unit.text2token.tiny import SPACE


def talk(engine: TensorRtLlmEngine, seed: int, sinks: list[WaitableSink]) -> None:
    """A caller: sessions of a few turns, some of them cancelled or closed in the middle."""
    rng = random.Random(seed)
    for round in range(6):
        try:
            session = engine.open(f"{seed}-{round}", SamplingSpec(), 1000)
        except BusyError:
            continue
        is_over = False
        while not is_over and rng.random() < 0.8:
            sink = WaitableSink()
            sinks.append(sink)
            session.turn([1, 2, 3], TurnLimits(rng.randrange(1, 30), forbidden=frozenset(SPACE.specials)), sink)
            if rng.random() < 0.3:
                is_over = True
                rng.choice([session.cancel, session.close])()
            assert sink.ended.wait(LONGEST_S)
        session.close()


def test_many_threads_use_one_engine() -> None:
    """TensorRT-LLM runs on while callers open, speak, cancel and close as they like: every turn ends once, and nothing is left."""
    bench = PortBench(sizes=replace(SIZES, max_sessions=4))
    stop, sinks = threading.Event(), list[WaitableSink]()

    def run_library() -> None:
        while not stop.is_set():
            if not bench.library.step():
                stop.wait(0.001)

    port = threading.Thread(target=run_library)
    callers = [threading.Thread(target=talk, args=(bench.engine, seed, sinks)) for seed in range(6)]
    for thread in (port, *callers):
        thread.start()
    for thread in callers:
        thread.join(LONGEST_S)
    stop.set()
    port.join(LONGEST_S)
    assert sinks and all(sink.result is not None and sink.late == 0 for sink in sinks)
    assert {sink.result.end for sink in sinks if sink.result is not None} <= {TurnEnd.LENGTH, TurnEnd.CANCELLED}
    assert bench.engine.stats().sessions == 0
    bench.close()

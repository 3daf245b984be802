"""The torch engine on a tiny random model: equal to the dense forward pass, sessions isolated, faults contained."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from bistream.config import RuntimeConfig
from bistream.gpu.claims import HOPS, PATIENCE_S, TOKENS, Claim, SharedGpu
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.layout import Turn
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sequence_series import SequenceSeries
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine, TorchSequence
from bistream.text2token.weights import build_weights
from tests.fakes import RecordingSink, ScriptedSampler, WaitableSink
from tests.unit.text2token.tiny import CONFIG, SPACE, eager_engine, needs_invariance, num_threads, random_state, tiny_model

ALL_STOPS = frozenset(SPACE.specials)
GREEDY = SamplingSpec(temperature=0.0)


ROOMY = EngineSettings(max_sessions=64, max_rows=256, kv_cache_tokens=65536)


def make(max_rows: int = 32, **settings_: object) -> TorchEngine:
    values = {"max_sessions": 8, "kv_cache_tokens": 4096, "block_size": 8} | settings_
    return eager_engine(dataclasses.replace(ROOMY, max_rows=max_rows, **values), threaded=False)  # type: ignore[arg-type]


def drain(engine: TorchEngine) -> None:
    while engine.step():
        engine.check_integrity()


def begin(sequence: TorchSequence, ids: Sequence[int], max_new: int) -> RecordingSink:
    sink = RecordingSink()
    sequence.turn(ids, TurnLimits(max_new, forbidden=ALL_STOPS, record_on_length=SPACE.fill), sink)
    return sink


def talk(engine: TorchEngine, name: str, spec: SamplingSpec, turns: Sequence[Sequence[int]], max_new: int = 9) -> list[list[int]]:
    """One session, turn after turn."""
    session, result = engine.open(name, spec, 300), []
    for ids in turns:
        sink = begin(session, ids, max_new)
        drain(engine)
        result.append(sink.ids)
    session.close()
    return result


def test_greedy_turns_match_the_dense_forward() -> None:
    """Prompt in chunks, appended text, last ids fed once: every id is the argmax of the whole sequence computed at once."""
    engine = make(max_rows=7)
    turns = [[SPACE.sos, *range(1, 30), SPACE.task], [5, 6, 7], [8], [9, 10, 11, 12, 13]]
    answers = talk(engine, "a", GREEDY, turns)
    ledger: list[int] = []
    for append, ids in zip(turns, answers, strict=True):
        ledger += append
        for token_id in ids:
            logits = tiny_model().logits(tiny_model().forward_dense(torch.tensor(ledger))[-1:])[0]
            assert token_id == SPACE.speech_offset + int(logits[: SPACE.speech_token_size].argmax())
            ledger.append(token_id)


@needs_invariance
@pytest.mark.parametrize("threads", [1, 2])
def test_scores_are_bit_identical_in_any_batch(threads: int) -> None:
    """Seeded sessions repeat exactly because not even rounding depends on the other rows of a step."""

    def scores_of_a(company: int) -> list[torch.Tensor]:
        scores: list[torch.Tensor] = []

        def keep(log_probs: torch.Tensor, decided: list[int]) -> int:
            scores.append(log_probs.clone())
            return len(decided)

        picks = {"a": keep} | {f"other{index}": lambda log_probs, decided: 7 for index in range(company)}
        engine = eager_engine(dataclasses.replace(ROOMY, max_rows=64), sampler=ScriptedSampler(picks), threaded=False)
        for index in range(company):
            begin(engine.open(f"other{index}", GREEDY, 600), range(10, 10 + 60 * index + 1), 60)
        begin(engine.open("a", GREEDY, 300), range(150), 40)
        drain(engine)
        return scores

    with num_threads(threads):
        alone, *beside = (scores_of_a(company) for company in (0, 1, 4))
    assert len(alone) == 40
    for scores in beside:
        assert not [step for step in range(40) if not torch.equal(alone[step], scores[step])]


def test_nan_fails_its_session_only_and_leaves_no_trace() -> None:
    """NaN in one session's keys: it ends with an error, the others continue as if alone, and its blocks serve later sessions."""
    engine = make(kv_cache_tokens=256)
    runner = engine._runner
    assert isinstance(runner, EagerRunner)
    expected = talk(make(), "good", SamplingSpec(seed=1), [[1, 2, 3]], max_new=20)[0]
    for _ in range(3):
        bad, good = engine.open("bad", SamplingSpec(seed=1), 100), engine.open("good", SamplingSpec(seed=1), 100)
        bad_sink, good_sink = begin(bad, [1, 2, 3, *range(50, 70)], 50), begin(good, [1, 2, 3], 20)
        for _ in range(4):
            engine.step()
        blocks = engine._scheduler.sequences["bad"].blocks
        runner.cache.blocks[:, :, blocks[1:]] = torch.nan
        drain(engine)
        assert bad_sink.result is not None and bad_sink.result.end is TurnEnd.ERROR
        assert bad_sink.result.error is not None and "invalid numbers" in bad_sink.result.error
        assert 1 <= len(bad_sink.ids) <= 4
        assert good_sink.ids == expected and engine.healthy
        bad.close()
        good.close()
        engine.check_integrity()
    sessions = [engine.open(f"next{index}", SamplingSpec(seed=1), 64) for index in range(4)]
    sinks = [begin(session, [1, 2, 3], 20) for session in sessions]
    drain(engine)
    assert [sink.ids for sink in sinks] == [expected] * 4


def test_a_sink_may_wait_for_another_thread_that_asks_the_engine() -> None:
    """Sinks are called without the engine's lock."""
    engine, answered = make(), threading.Event()

    def ask() -> None:
        engine.stats()
        answered.set()

    class Asking(RecordingSink):
        def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
            super().on_ids(ids)
            asker = threading.Thread(target=ask, daemon=True)
            asker.start()
            asker.join(240)

    engine.open("a", GREEDY, 100).turn([1, 2], TurnLimits(1, forbidden=ALL_STOPS), Asking())
    engine.step()
    assert answered.is_set()


def test_half_precision_runs_and_is_seeded() -> None:
    model = Qwen2Model(CONFIG, build_weights(random_state(CONFIG), CONFIG, torch.device("cpu"), torch.bfloat16))
    answers = []
    for _ in range(2):
        engine = eager_engine(dataclasses.replace(ROOMY, max_sessions=2, kv_cache_tokens=1024), model, threaded=False)
        answers.append(talk(engine, "a", SamplingSpec(seed=3), [[1, 2, 3], [4, 5]]))
    assert answers[0] == answers[1] and len(answers[0][1]) == 9


def test_from_config_loads_a_model_directory(tiny_model_dir: Path) -> None:
    engine = TorchEngine.from_config(RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", max_sessions=3, kv_cache_tokens=1024))
    try:
        assert engine.settings.max_sessions == 3 and engine.longest_sequence == 1024
        sink = WaitableSink()
        space = engine.space
        engine.open("a", SamplingSpec(), 50).turn([space.sos, 1, 2], TurnLimits(5, forbidden=frozenset(space.specials)), sink)
        assert sink.ended.wait(240) and len(sink.ids) == 5
    finally:
        engine.close()


@pytest.mark.parametrize("slack_s", [100.0, 1e10, 3.4e38])
def test_others_are_decoded_while_one_is_held(slack_s: float) -> None:
    """By the engine's own thread, which waits until the listener needs more, whatever number its caller sends."""
    engine = eager_engine(dataclasses.replace(ROOMY, max_sessions=2, kv_cache_tokens=1024, max_ahead_s=10.0))
    limits = TurnLimits(9, forbidden=ALL_STOPS)
    try:
        held = engine.open("held", GREEDY, 300)
        held.demand(slack_s, 0)
        held.turn([SPACE.sos, 1, 2], limits, RecordingSink())
        for number in range(3):
            sink, other = WaitableSink(), engine.open("other", GREEDY, 300)
            other.turn([SPACE.sos, 3, number], limits, sink)
            assert sink.ended.wait(240) and len(sink.ids) == 9
            other.close()
    finally:
        engine.close()


def test_while_nobody_waits_the_gpu_is_left_to_urgent_hops_but_not_for_long(tmp_path: Path) -> None:
    hops, clock = Claim(tmp_path, 0, HOPS), TickingClock()
    shared = SharedGpu(Claim(tmp_path, 0, TOKENS), hops, PATIENCE_S[TOKENS])
    hops.claim()
    engine = eager_engine(settings_of_engine(), threaded=False, clock=clock, gpu_claims=shared)
    calm = engine.open("calm", GREEDY, 300)
    sink = begin(calm, [1, 2, 3], 20)
    while not sink.ids:
        assert engine.step()
    calm.demand(1000.0, 0)
    while engine.step():
        pass
    heard = len(sink.ids)
    assert heard < 20
    assert begin(engine.open("new", GREEDY, 300), [4, 5], 3) is not None and engine.step(), "somebody waits"
    while engine.step():
        pass
    clock.now_s += PATIENCE_S[TOKENS]
    assert engine.step() and not engine.step(), "one step, then its patience begins anew"
    hops.release()
    while len(sink.ids) < 20:
        assert engine.step()
    assert sink.ids == talk(make(), "alone", GREEDY, [[1, 2, 3]], 20)[0]


def test_the_gpu_is_claimed_while_somebody_waits_for_tokens_and_no_longer(tmp_path: Path) -> None:
    seen = Claim(tmp_path, 0, TOKENS)
    shared = SharedGpu(Claim(tmp_path, 0, TOKENS), Claim(tmp_path, 0, HOPS), PATIENCE_S[TOKENS])
    clock = TickingClock()
    engine = eager_engine(settings_of_engine(), threaded=False, clock=clock, gpu_claims=shared)
    assert seen.held is None
    sequence = engine.open("a", GREEDY, 300)
    sequence.demand(0.0, 3)
    sink, claims = begin(sequence, [1, 2, 3], 30), []
    while engine.step():
        claims.append((len(sink.ids), seen.held))
        if len(sink.ids) == 10 and claims[-2][0] < 10:
            sequence.demand(0.0, 3)  # it hears nothing again
    assert all(held is not None for count, held in claims if count < 3), "it waits for three"
    assert all(held is not None for count, held in claims if 11 <= count < 13), "and for three more"
    assert all(held is None for count, held in claims if count > 25), "25 tokens ahead are a second of audio"
    assert len({held for _, held in claims if held is not None}) > 6, "each step claims anew"
    engine.close()


def test_a_sequence_that_begins_anew_keeps_what_its_listener_waits_for() -> None:
    """The next demand comes only with the answer to this one."""
    engine = eager_engine(settings_of_engine(), threaded=False, clock=TickingClock())
    series = SequenceSeries(engine, "a", SamplingSpec(), 200, (75, lambda found, outcome: None), clock=lambda: 0.0)
    series.begin(Turn((1, 2, 3), TurnLimits(10)), RecordingSink())
    series.demand(0.0, 28)
    while engine.step():
        pass
    series.begin(Turn((1, 2, 3), TurnLimits(10), restarts=True), RecordingSink())
    demand = engine._scheduler.sequences["a"].demand
    assert demand is not None and demand.lacks == 28
    engine.close()


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end_s, what


def test_the_claim_ends_with_the_work_and_with_the_engine(tmp_path: Path) -> None:
    """By the engine's own thread, which goes to sleep with a listener who waits for more than there is."""
    seen = Claim(tmp_path, 0, TOKENS)
    shared = SharedGpu(Claim(tmp_path, 0, TOKENS), Claim(tmp_path, 0, HOPS), PATIENCE_S[TOKENS])
    engine = eager_engine(dataclasses.replace(ROOMY, max_sessions=2, kv_cache_tokens=1024), gpu_claims=shared)
    sink, sequence = WaitableSink(), engine.open("a", GREEDY, 300)
    sequence.demand(0.0, 100)
    sequence.turn([SPACE.sos, 1, 2], TurnLimits(9, forbidden=ALL_STOPS), sink)
    assert sink.ended.wait(240)
    until(lambda: seen.held is None, "the thread goes to sleep")
    sequence.close()
    sink, sequence = WaitableSink(), engine.open("b", GREEDY, 1000)
    sequence.demand(0.0, 900)
    sequence.turn([SPACE.sos, 1, 2], TurnLimits(900, forbidden=ALL_STOPS), sink)
    until(lambda: seen.held is not None, "somebody waits")
    engine.close()
    assert seen.held is None


def settings_of_engine() -> EngineSettings:
    return EngineSettings(max_sessions=8, kv_cache_tokens=4096, block_size=8, max_rows=32, idle_pause=0.0)


class TickingClock:
    """A millisecond later whenever it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def test_while_nobody_waits_steps_come_with_pauses_that_end_for_whoever_comes() -> None:
    clock = TickingClock()
    paced = eager_engine(dataclasses.replace(settings_of_engine(), idle_pause=1000.0), threaded=False, clock=clock)
    calm = paced.open("calm", GREEDY, 300)
    sink = begin(calm, [1, 2, 3], 20)
    while not sink.ids:
        assert paced.step()
    calm.demand(5.0, 0)
    while paced.step():
        pass
    heard = len(sink.ids)
    assert heard < 20, "its listener has audio, so the GPU is left to others"
    assert begin(paced.open("new", GREEDY, 300), [4, 5], 3) is not None and paced.step(), "the pause is for nobody's sake but theirs"
    while len(sink.ids) < 20:
        clock.now_s += 10.0
        assert paced.step()
    assert sink.ids == talk(make(), "alone", GREEDY, [[1, 2, 3]], 20)[0]

"""The contract of ``bistream.text2token.engine`` as tests for any engine.

Subclass ``EngineConformance`` and give it a ``bench`` fixture that yields a ``Bench``: an engine of at least 4 and at most 64
sessions over ``SPACE`` that sometimes stops by itself, and the means to drive it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from bistream.errors import BusyError, EngineError, InvalidInputError, SessionExistsError, ShuttingDownError, UnknownSessionError
from bistream.text2token.engine import Engine, EngineSequence, SamplingSpec, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.sequence import StepPlan
from bistream.text2token.step_runner import SampledRows, StepRunner
from bistream.text2token.torch_engine import TorchEngine
from tests.fakes import RecordingSink
from tests.unit.text2token.tiny import SPACE

GREEDY = SamplingSpec(temperature=0.0)
ALL_STOPS = frozenset(SPACE.specials)
NO_STOP = TurnLimits(10, forbidden=ALL_STOPS)


@dataclass
class Bench:
    """An engine under test. ``drive(sinks)`` returns when all these turns have ended; ``advance()`` lets the engine do a
    step or two; ``fail()`` makes its next step raise. is_seeded: its turns repeat with their seed, not only greedy ones."""

    engine: Engine
    drive: Callable[[Sequence[RecordingSink]], None]
    advance: Callable[[], object]
    fail: Callable[[], None]
    max_sessions: int
    is_seeded: bool = True

    def run(self, sequence: EngineSequence, append_ids: Sequence[int], limits: TurnLimits) -> tuple[list[int], TurnResult]:
        """One turn from start to end."""
        sink = RecordingSink()
        sequence.turn(append_ids, limits, sink)
        self.drive([sink])
        assert sink.result is not None and sink.late == 0
        return sink.ids, sink.result


def prompt(*ids: int) -> list[int]:
    return [SPACE.sos, *ids, SPACE.task]


class ChainSink(RecordingSink):
    """Starts the next turn from within ``on_end``, or does something at the first id."""

    def __init__(self, at_first_id: Callable[[], None] | None = None, at_end: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.at_first_id = at_first_id
        self.at_end = at_end

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        super().on_ids(ids)
        if self.at_first_id is not None:
            action, self.at_first_id = self.at_first_id, None
            action()

    def on_end(self, result: TurnResult) -> None:
        super().on_end(result)
        if self.at_end is not None:
            self.at_end()


class FaultyRunner:
    """Another runner, which can be told to fail. run_ahead: its results are read that many steps late."""

    def __init__(self, runner: StepRunner, run_ahead: int | None = None) -> None:
        self.run_ahead = runner.run_ahead if run_ahead is None else run_ahead
        self.space, self.settings = runner.space, runner.settings
        self.broken = False
        self.most_waiting = 0
        self._waiting = 0
        self._runner = runner

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

    def places(self) -> list[int] | None:
        return self._runner.places()

    def break_down(self) -> None:
        self.broken = True


def stepped_bench(runner: FaultyRunner) -> Bench:
    """The torch engine over ``runner``, without a thread of its own."""
    engine = TorchEngine(runner, runner.settings, threaded=False)

    def drive(sinks: Sequence[RecordingSink]) -> None:
        while any(sink.result is None for sink in sinks):
            assert engine.step(), "the engine has nothing to do, but a turn has not ended"

    return Bench(engine, drive, lambda: [engine.step(), engine.step()], runner.break_down, runner.settings.max_sessions)


class EngineConformance:
    def test_turn_ends_by_length_with_speech_ids_only(self, bench: Bench) -> None:
        session = bench.engine.open("a", GREEDY, 100)
        ids, result = bench.run(session, prompt(1, 2, 3), NO_STOP)
        assert result == TurnResult(TurnEnd.LENGTH)
        assert len(ids) == 10 and all(SPACE.is_speech(token_id) for token_id in ids)

    def test_stop_id_is_reported_and_never_yielded(self, bench: Bench) -> None:
        seen = set()
        for seed in range(5):
            session = bench.engine.open("a", SamplingSpec(seed=seed), 120)
            ids, result = bench.run(session, prompt(1, 2, seed), TurnLimits(100))
            assert all(SPACE.is_speech(token_id) for token_id in ids)
            if result.end is TurnEnd.STOP:
                seen.add(result.stop_id)
                assert len(ids) < 100
            session.close()
        assert seen and seen <= ALL_STOPS

    @pytest.mark.parametrize("forbidden", SPACE.specials)
    def test_forbidden_stop_ids_never_end_a_turn(self, bench: Bench, forbidden: int) -> None:
        for seed in range(3):
            session = bench.engine.open("a", SamplingSpec(seed=seed), 120)
            _, result = bench.run(session, prompt(1, 2, seed), TurnLimits(60, forbidden=frozenset({forbidden})))
            assert result.stop_id != forbidden
            session.close()

    def test_early_stop_is_forbidden_until_enough_ids(self, bench: Bench) -> None:
        lengths = []
        for seed in range(3):
            session = bench.engine.open("a", SamplingSpec(seed=seed), 120)
            limits = TurnLimits(100, min_new_ids=23, forbidden_early=ALL_STOPS)
            ids, result = bench.run(session, prompt(1, 2, seed), limits)
            lengths.append(len(ids))
            session.close()
        assert min(lengths) >= 23 and min(lengths) < 100

    def test_min_ids_count_per_turn(self, bench: Bench) -> None:
        session = bench.engine.open("a", SamplingSpec(seed=3), 400)
        for _ in range(5):
            ids, _ = bench.run(session, [5, 6, 7], TurnLimits(40, min_new_ids=9, forbidden_early=ALL_STOPS))
            assert 9 <= len(ids) <= 40

    def test_sequence_can_be_rebuilt_from_the_ledger(self, bench: Bench) -> None:
        """Appended and yielded ids are the sequence, stop ids are not: a fresh session fed with the ledger continues identically."""
        session = bench.engine.open("a", GREEDY, 300)
        ledger: list[int] = []
        ends = set()
        for turn in range(8):
            append = [turn + 1, 2 * turn + 1, 7]
            limits = TurnLimits(3 + turn, forbidden=ALL_STOPS) if turn % 3 == 0 else TurnLimits(4 + turn)
            rebuilt = bench.engine.open("b", GREEDY, 300)
            expected = bench.run(rebuilt, [*ledger, *append], limits)
            rebuilt.close()
            ids, result = bench.run(session, append, limits)
            assert (ids, result) == expected
            ledger += [*append, *ids]
            ends.add(result.end)
        assert ends == {TurnEnd.STOP, TurnEnd.LENGTH}

    def test_same_seed_gives_the_same_ids_in_any_batch(self, bench: Bench) -> None:
        """Without seeds, greedy turns do."""
        spec = SamplingSpec(seed=11) if bench.is_seeded else GREEDY
        limits = TurnLimits(30, forbidden=ALL_STOPS)
        alone = bench.engine.open("a", spec, 200)
        expected = bench.run(alone, prompt(9, 8, 7), limits)[0] + bench.run(alone, [4, 5], limits)[0]
        alone.close()
        others = [bench.engine.open(f"other{index}", SamplingSpec(seed=index), 200) for index in range(3)]
        sinks = [RecordingSink() for _ in others]
        for index, (other, sink) in enumerate(zip(others, sinks, strict=True)):
            other.turn(prompt(*range(1, 10 + 30 * index)), TurnLimits(60 + index, forbidden=ALL_STOPS), sink)
        bench.advance()
        again = bench.engine.open("a", spec, 200)
        assert bench.run(again, prompt(9, 8, 7), limits)[0] + bench.run(again, [4, 5], limits)[0] == expected
        bench.drive(sinks)

    def test_sessions_run_together_and_end_separately(self, bench: Bench) -> None:
        sinks = [RecordingSink() for _ in range(4)]
        sessions = [bench.engine.open(f"s{index}", GREEDY, 200) for index in range(4)]
        for index, (session, sink) in enumerate(zip(sessions, sinks, strict=True)):
            session.turn(prompt(index + 1), TurnLimits(5 * (index + 1), forbidden=ALL_STOPS), sink)
        bench.drive(sinks)
        assert [len(sink.ids) for sink in sinks] == [5, 10, 15, 20]
        assert bench.engine.stats().sessions == 4 and bench.engine.stats().running_turns == 0

    def test_a_sink_that_raises_ends_its_turn_and_no_other(self, bench: Bench) -> None:
        def fail() -> None:
            raise ValueError("a mistake of the caller")

        bad, good = ChainSink(at_first_id=fail), RecordingSink()
        sessions = [bench.engine.open(name, GREEDY, 200) for name in ("bad", "good")]
        for session, sink in zip(sessions, (bad, good), strict=True):
            session.turn(prompt(1), NO_STOP, sink)
        bench.drive([bad, good])
        assert bad.result is not None and bad.result.end is TurnEnd.ERROR and bad.result.error and bad.late == 0
        assert good.result == TurnResult(TurnEnd.LENGTH) and len(good.ids) == 10 and bench.engine.healthy
        with pytest.raises(UnknownSessionError):
            sessions[0].turn([1], NO_STOP, RecordingSink())
        sessions[0].close()
        bench.engine.check_integrity()

    def test_next_turn_may_start_from_the_end_of_the_last(self, bench: Bench) -> None:
        session = bench.engine.open("a", GREEDY, 200)
        second = RecordingSink()
        first = ChainSink(at_end=lambda: session.turn([4, 5, 6], NO_STOP, second))
        session.turn(prompt(1), NO_STOP, first)
        bench.drive([first, second])
        assert len(first.ids) == len(second.ids) == 10

    def test_cancel_ends_the_turn_and_the_session(self, bench: Bench) -> None:
        session = bench.engine.open("a", GREEDY, 400)
        other = bench.engine.open("b", GREEDY, 400)
        sink = ChainSink(at_first_id=session.cancel)
        beside = RecordingSink()
        session.turn(prompt(1), TurnLimits(390, forbidden=ALL_STOPS), sink)
        other.turn(prompt(1), TurnLimits(30, forbidden=ALL_STOPS), beside)
        bench.drive([sink, beside])
        assert sink.result == TurnResult(TurnEnd.CANCELLED) and sink.late == 0
        assert len(sink.ids) <= 3, "a cancel takes effect within two steps"
        assert len(beside.ids) == 30
        with pytest.raises(UnknownSessionError):
            session.turn([1], NO_STOP, RecordingSink())
        session.close()
        bench.engine.check_integrity()

    def test_cancel_without_a_turn_does_nothing(self, bench: Bench) -> None:
        session = bench.engine.open("a", GREEDY, 200)
        session.cancel()
        bench.run(session, prompt(1), NO_STOP)
        session.cancel()
        assert bench.run(session, [3], NO_STOP)[1].end is TurnEnd.LENGTH

    def test_close_frees_everything_and_is_idempotent(self, bench: Bench) -> None:
        session = bench.engine.open("a", GREEDY, 200)
        sink = RecordingSink()
        session.turn(prompt(1), TurnLimits(150, forbidden=ALL_STOPS), sink)
        bench.advance()
        session.close()
        session.close()
        session.cancel()
        bench.drive([sink])
        assert sink.result == TurnResult(TurnEnd.CANCELLED) and sink.late == 0
        stats = bench.engine.stats()
        assert (stats.sessions, stats.running_turns, stats.kv_tokens_used) == (0, 0, 0)
        bench.engine.check_integrity()
        with pytest.raises(UnknownSessionError):
            session.turn([1], NO_STOP, RecordingSink())

    def test_an_id_can_be_used_again_after_close_only(self, bench: Bench) -> None:
        session = bench.engine.open("a", GREEDY, 100)
        expected, _ = bench.run(session, prompt(1, 2), NO_STOP)
        with pytest.raises(SessionExistsError):
            bench.engine.open("a", GREEDY, 100)
        session.close()
        assert bench.run(bench.engine.open("a", GREEDY, 100), prompt(1, 2), NO_STOP)[0] == expected

    def test_busy_at_once_and_free_again(self, bench: Bench) -> None:
        sessions = [bench.engine.open(f"s{index}", GREEDY, 16) for index in range(bench.max_sessions)]
        with pytest.raises(BusyError):
            bench.engine.open("one more", GREEDY, 16)
        sessions[1].close()
        bench.run(bench.engine.open("one more", GREEDY, 16), prompt(1), TurnLimits(3, forbidden=ALL_STOPS))

    def test_no_over_commit_of_positions(self, bench: Bench) -> None:
        """Every admitted session can run to its ``max_ids``."""
        total = bench.engine.stats().kv_tokens_total
        longest = min(bench.engine.longest_sequence, total // 2)
        opened = []
        with pytest.raises(BusyError):
            for index in range(bench.max_sessions + 1):
                opened.append(bench.engine.open(f"s{index}", GREEDY, longest))
        sinks = [RecordingSink() for _ in opened]
        head = [1 + index % 100 for index in range(longest - 20)]
        for session, sink in zip(opened, sinks, strict=True):
            session.turn(head, TurnLimits(10**6, forbidden=ALL_STOPS), sink)
        bench.drive(sinks)
        assert [(len(sink.ids), sink.result) for sink in sinks] == [(20, TurnResult(TurnEnd.LENGTH))] * len(opened)

    def test_session_ends_at_max_ids(self, bench: Bench) -> None:
        session = bench.engine.open("a", GREEDY, 20)
        ids, result = bench.run(session, prompt(1, 2, 3), TurnLimits(1000, forbidden=ALL_STOPS))
        assert (len(ids), result) == (15, TurnResult(TurnEnd.LENGTH))
        with pytest.raises(InvalidInputError):
            session.turn([1], NO_STOP, RecordingSink())
        bench.engine.check_integrity()

    @pytest.mark.parametrize("append_ids", [[], [-1], [SPACE.size], [1, 2, 10**9]])
    def test_bad_ids_are_refused(self, bench: Bench, append_ids: list[int]) -> None:
        session = bench.engine.open("a", GREEDY, 100)
        with pytest.raises(InvalidInputError):
            session.turn(append_ids, NO_STOP, RecordingSink())
        bench.run(session, prompt(1), NO_STOP)

    @pytest.mark.parametrize("limits", [TurnLimits(0), TurnLimits(5, forbidden=frozenset({1})), TurnLimits(-3)])
    def test_bad_limits_are_refused(self, bench: Bench, limits: TurnLimits) -> None:
        session = bench.engine.open("a", GREEDY, 100)
        with pytest.raises(InvalidInputError):
            session.turn([1], limits, RecordingSink())

    @pytest.mark.parametrize(
        "spec", [SamplingSpec(top_k=0), SamplingSpec(top_p=0.0), SamplingSpec(top_p=1.5), SamplingSpec(temperature=-1.0)]
    )
    def test_bad_sampling_is_refused(self, bench: Bench, spec: SamplingSpec) -> None:
        with pytest.raises(InvalidInputError):
            bench.engine.open("a", spec, 100)
        assert bench.engine.stats().sessions == 0

    def test_a_session_longer_than_the_engine_is_refused(self, bench: Bench) -> None:
        with pytest.raises(InvalidInputError):
            bench.engine.open("a", GREEDY, bench.engine.longest_sequence + 1)

    def test_closing_the_engine_cancels_turns(self, bench: Bench) -> None:
        session = bench.engine.open("a", GREEDY, 400)
        sink = RecordingSink()
        session.turn(prompt(1), TurnLimits(390, forbidden=ALL_STOPS), sink)
        bench.engine.close()
        bench.engine.close()
        bench.drive([sink])
        assert sink.result == TurnResult(TurnEnd.CANCELLED) and sink.late == 0
        with pytest.raises(ShuttingDownError):
            bench.engine.open("b", GREEDY, 100)
        with pytest.raises(ShuttingDownError):
            session.turn([1], NO_STOP, RecordingSink())
        session.close()
        bench.engine.check_integrity()

    def test_failure_ends_all_turns_and_is_final(self, bench: Bench) -> None:
        sessions = [bench.engine.open(f"s{index}", GREEDY, 300) for index in range(3)]
        sinks = [RecordingSink() for _ in sessions[:2]]
        assert bench.engine.healthy
        bench.run(sessions[2], prompt(1), NO_STOP)
        for session, sink in zip(sessions[:2], sinks, strict=True):
            session.turn(prompt(1), TurnLimits(290, forbidden=ALL_STOPS), sink)
        bench.fail()
        bench.drive(sinks)
        for sink in sinks:
            assert sink.result is not None and sink.result.end is TurnEnd.ERROR and sink.result.error and sink.late == 0
        assert not bench.engine.healthy
        with pytest.raises(EngineError):
            bench.engine.open("late", GREEDY, 100)
        with pytest.raises(EngineError):
            sessions[2].turn([1], NO_STOP, RecordingSink())
        for session in sessions:
            session.close()
        assert bench.engine.stats().sessions == 0
        bench.engine.check_integrity()

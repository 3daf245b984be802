"""Properties of the layouts: the fed ids depend on the text alone, and every session ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import EngineError
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text2token.engine import TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import Turn
from bistream.types import FinishReason
from tests.formats import MAX_SPEECH_TOKENS_PER_TEXT_TOKEN, SPEECH_BLOCK_TOKENS, TEXT_BLOCK_TOKENS
from tests.unit.cuts import pieces_of

SPACE = TokenSpace(text_vocab_size=1000, speech_token_size=100)
EVERY_ROW = replace(COSYVOICE3.rows, num_scored=COSYVOICE3.rows.num_stored)  # also those that no engine is given
SPACES = {"CosyVoice2": SPACE, "CosyVoice3": replace(SPACE, rows=COSYVOICE3.rows)}
of_every_family = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


def speech(*tokens: int) -> list[int]:
    return [SPACE.speech_offset + token for token in tokens]


Choose = Callable[[list[int], list[int]], int]  # (sequence so far, allowed stop ids) -> a speech id or one of the stop ids


def speech_until_asked(sequence: list[int], stops: list[int]) -> int:
    """Never stops by itself: every end is forced."""
    return SPACE.speech_offset + len(sequence) % SPACE.speech_token_size


def random_choice(seed: int, stop_rate: float) -> Choose:
    """Depends on the sequence only, as a language model with a fixed seed does."""

    def choose(sequence: list[int], stops: list[int]) -> int:
        rng = random.Random(hash((seed, len(sequence), *sequence[-8:])))
        if stops and rng.random() < stop_rate:
            return rng.choice(stops)
        return SPACE.speech_offset + rng.randrange(SPACE.speech_token_size)

    return choose


def always(stop_name: str, space: TokenSpace = SPACE) -> Choose:
    """other: an id that ends a turn and is neither eos nor fill."""
    wanted = max(set(space.specials) - {space.eos, space.fill}) if stop_name == "other" else getattr(space, stop_name)
    return lambda sequence, stops: wanted if wanted in stops else speech_until_asked(sequence, stops)


@dataclass
class Run:
    """A session on an engine that samples with ``choose``; keeps every id that the model would be fed."""

    layout: Interleaver | UnistreamLayout
    choose: Choose
    sequence: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    per_turn: list[list[int]] = field(default_factory=list)

    def drain(self) -> None:
        while (turn := self.layout.next_turn()) is not None:
            assert turn.append_ids
            self.turns.append(turn)
            self.sequence += turn.append_ids
            ids, result = self._decode(turn.limits)
            self.per_turn.append(ids)
            self.layout.turn_ended(ids, result)

    def _decode(self, limits: TurnLimits) -> tuple[list[int], TurnResult]:
        assert limits.max_new_ids >= max(1, limits.min_new_ids)
        ids: list[int] = []
        while len(ids) < limits.max_new_ids:
            early = limits.forbidden_early if len(ids) < limits.min_new_ids else frozenset()
            chosen = self.choose(self.sequence, [stop for stop in self.layout.space.specials if stop not in limits.forbidden | early])
            if chosen in self.layout.space.specials:
                return ids, TurnResult(TurnEnd.STOP, stop_id=chosen)
            ids.append(chosen)
            self.sequence.append(chosen)
            assert len(self.sequence) < 10_000, "the session does not end"
        return ids, TurnResult(TurnEnd.LENGTH)

    def feed(self, pieces: Sequence[Sequence[int]]) -> Run:
        for piece in pieces:
            self.layout.push_text(piece)
            self.drain()
        self.layout.end_text()
        self.drain()
        return self


def bistream(
    pieces: Sequence[Sequence[int]],
    choose: Choose = speech_until_asked,
    prompt_text: Sequence[int] = (),
    prompt_speech: Sequence[int] = (),
    max_ids: int | None = None,
    space: TokenSpace = SPACE,
    instruction: Sequence[int] = (),
) -> Run:
    layout = Interleaver(space, prompt_text, prompt_speech, max_ids=max_ids, instruction_ids=instruction)
    return Run(layout, choose).feed(pieces)


TEXT = st.lists(st.integers(0, 999), min_size=1, max_size=60)
PROMPT_TEXT = st.lists(st.integers(0, 999), max_size=40)
PROMPT_SPEECH = st.lists(st.integers(0, 99), max_size=80).map(lambda tokens: speech(*tokens))
PLACES = st.lists(st.integers(0, 60), max_size=20)
CHOOSE = st.builds(random_choice, st.integers(0, 1000), st.sampled_from([0.0, 0.02, 0.3, 1.0]))


@of_every_family
class TestBistream:
    @given(text=TEXT, prompt_text=PROMPT_TEXT, prompt_speech=PROMPT_SPEECH, places=PLACES, choose=CHOOSE)
    def test_the_fed_ids_depend_on_the_text_alone(
        self, space: TokenSpace, text: list[int], prompt_text: list[int], prompt_speech: list[int], places: list[int], choose: Choose
    ) -> None:
        whole = bistream([text], choose, prompt_text, prompt_speech, space=space)
        pieces = bistream(pieces_of(text, places), choose, prompt_text, prompt_speech, space=space)
        late_end = bistream([*([token] for token in text), []], choose, prompt_text, prompt_speech, space=space)
        assert pieces.turns == late_end.turns == whole.turns
        assert pieces.sequence == late_end.sequence == whole.sequence
        assert pieces.layout.finish_reason is late_end.layout.finish_reason is whole.layout.finish_reason

    @given(text=TEXT, prompt_text=PROMPT_TEXT, prompt_speech=PROMPT_SPEECH, places=PLACES, choose=CHOOSE)
    def test_the_sequence_is_the_training_layout(
        self, space: TokenSpace, text: list[int], prompt_text: list[int], prompt_speech: list[int], places: list[int], choose: Choose
    ) -> None:
        """sos, then blocks of 5 text and at most 15 speech, then the rest of the text, task, and the remaining speech."""
        run = bistream(pieces_of(text, places), choose, prompt_text, prompt_speech, space=space)
        assert run.layout.finish_reason is not None
        all_text = [*prompt_text, *text]
        assert run.sequence[0] == space.sos
        at = 1
        while len(all_text) >= TEXT_BLOCK_TOKENS:
            assert run.sequence[at : at + TEXT_BLOCK_TOKENS] == all_text[:TEXT_BLOCK_TOKENS]
            del all_text[:TEXT_BLOCK_TOKENS]
            at += TEXT_BLOCK_TOKENS
            block = at
            while at < len(run.sequence) and space.is_speech(run.sequence[at]):
                at += 1
            assert at - block <= SPEECH_BLOCK_TOKENS
        if run.sequence[at:]:  # the length limit may be used up before the final phase
            assert run.sequence[at : at + len(all_text) + 1] == [*all_text, space.task]
            assert all(map(space.is_speech, run.sequence[at + len(all_text) + 1 :]))
        fed_speech = [token_id for token_id in run.sequence if space.is_speech(token_id)]
        if run.sequence[at:]:
            assert len(fed_speech) == len(prompt_speech) + run.layout.num_speech  # nothing dropped, nothing fed twice
            decoded = [token_id for ids in run.per_turn for token_id in ids]
            assert sorted(fed_speech) == sorted([*prompt_speech, *decoded])

    @given(text=TEXT, prompt_text=PROMPT_TEXT, prompt_speech=PROMPT_SPEECH, choose=CHOOSE)
    def test_every_session_ends_within_twenty_speech_tokens_per_text_token(
        self, space: TokenSpace, text: list[int], prompt_text: list[int], prompt_speech: list[int], choose: Choose
    ) -> None:
        run = bistream([text], choose, prompt_text, prompt_speech, space=space)
        assert run.layout.finish_reason is not None
        of_prompt_blocks = SPEECH_BLOCK_TOKENS * (len(prompt_text) // TEXT_BLOCK_TOKENS)
        assert run.layout.num_speech <= MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * len(text) + of_prompt_blocks
        if not prompt_text:
            assert run.layout.num_speech <= MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * len(text)

    @pytest.mark.parametrize("stop", ["eos", "other", "fill"])
    def test_a_model_that_always_wants_to_stop_gets_to_the_end_of_the_text(self, space: TokenSpace, stop: str) -> None:
        run = bistream([[number] for number in range(23)], always(stop, space), space=space)
        assert run.layout.finish_reason is not None
        assert [token_id for token_id in run.sequence if token_id < 23] == list(range(23))
        assert run.layout.finish_reason is (FinishReason.EOS if stop == "eos" else FinishReason.LENGTH)

    def test_a_model_that_never_stops_is_stopped_by_length(self, space: TokenSpace) -> None:
        run = bistream([list(range(7))], space=space)
        assert run.layout.finish_reason is FinishReason.LENGTH
        assert run.layout.num_speech == MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * 7

    def test_only_speech_fill_and_in_the_final_phase_eos_are_possible(self, space: TokenSpace) -> None:
        run = bistream([list(range(7))], space=space)
        block, final = run.turns
        assert set(space.specials) - block.limits.forbidden == {space.fill}
        assert set(space.specials) - final.limits.forbidden == {space.eos}
        assert (block.limits.max_new_ids, block.limits.record_on_length) == (15, space.fill)
        assert final.limits.record_on_length is None

    @given(max_ids=st.integers(2, 120), prompt_speech=PROMPT_SPEECH, text=TEXT, choose=CHOOSE)
    def test_a_session_stays_within_its_positions(
        self, space: TokenSpace, max_ids: int, prompt_speech: list[int], text: list[int], choose: Choose
    ) -> None:
        run = bistream([text], choose, list(range(10)), prompt_speech, max_ids=max_ids, space=space)
        assert run.layout.finish_reason is not None
        assert len(run.sequence) <= max_ids

    @pytest.mark.parametrize(("end", "reason"), [(TurnEnd.CANCELLED, FinishReason.CANCELLED), (TurnEnd.ERROR, FinishReason.ERROR)])
    def test_an_end_by_the_engine_ends_the_session(self, space: TokenSpace, end: TurnEnd, reason: FinishReason) -> None:
        for layout in (Interleaver(space, [], []), UnistreamLayout(space, [], [])):
            layout.push_text(list(range(6)))
            layout.end_text()
            assert layout.next_turn() is not None
            assert layout.next_turn() is None  # one turn in flight
            layout.turn_ended(speech(1, 2), TurnResult(end))
            assert layout.finish_reason is reason
            assert layout.next_turn() is None

    @pytest.mark.parametrize("stop", ["eos", "other"])
    def test_a_forbidden_stop_is_an_error_of_the_engine(self, space: TokenSpace, stop: str) -> None:
        layout = Interleaver(space, [], [])
        layout.push_text(list(range(5)))
        assert layout.next_turn() is not None
        with pytest.raises(EngineError):
            layout.turn_ended([], TurnResult(TurnEnd.STOP, stop_id=always(stop, space)([], list(space.specials))))

    @pytest.mark.parametrize("ids", [["fill"], [3], ["task"], speech(*range(16))])
    def test_ids_that_are_not_speech_or_too_many_are_an_error_of_the_engine(self, space: TokenSpace, ids: list[int | str]) -> None:
        layout = Interleaver(space, [], [])
        layout.push_text(list(range(5)))
        assert layout.next_turn() is not None
        with pytest.raises(EngineError):
            layout.turn_ended([getattr(space, one) if isinstance(one, str) else one for one in ids], TurnResult(TurnEnd.LENGTH))

    def test_text_used_counts_new_text_that_turns_have_appended(self, space: TokenSpace) -> None:
        layout = Interleaver(space, [100, 101, 102], [])
        layout.push_text(list(range(7)))
        used = []
        while layout.next_turn() is not None:
            used.append(layout.num_text_used)
            layout.turn_ended([], TurnResult(TurnEnd.STOP, stop_id=space.fill))
        assert used == [2, 7]


@of_every_family
class TestUnistream:
    @given(text=TEXT, prompt_text=PROMPT_TEXT, prompt_speech=PROMPT_SPEECH, choose=CHOOSE)
    def test_one_turn_of_two_to_twenty_tokens_per_text_token(
        self, space: TokenSpace, text: list[int], prompt_text: list[int], prompt_speech: list[int], choose: Choose
    ) -> None:
        run = Run(UnistreamLayout(space, prompt_text, prompt_speech), choose).feed(pieces_of(text, [3, 9]))
        assert [turn.append_ids for turn in run.turns] == [(space.sos, *prompt_text, *text, space.task, *prompt_speech)]
        assert 2 * len(text) <= run.layout.num_speech <= 20 * len(text)
        assert run.layout.finish_reason is (FinishReason.LENGTH if run.layout.num_speech == 20 * len(text) else FinishReason.EOS)

    def test_nothing_happens_before_the_text_ended(self, space: TokenSpace) -> None:
        layout = UnistreamLayout(space, [], [])
        layout.push_text(list(range(30)))
        assert layout.next_turn() is None

    @pytest.mark.parametrize("stop", ["other", "fill"])
    def test_the_other_stops_are_impossible(self, space: TokenSpace, stop: str) -> None:
        run = Run(UnistreamLayout(space, [], []), always(stop, space)).feed([[1, 2]])
        assert (run.layout.num_speech, run.layout.finish_reason) == (40, FinishReason.LENGTH)

    def test_positions_bound_the_turn(self, space: TokenSpace) -> None:
        run = Run(UnistreamLayout(space, [], [], max_ids=14), speech_until_asked).feed([[1, 2]])
        assert (run.layout.num_speech, len(run.sequence)) == (10, 14)
        none_left = Run(UnistreamLayout(space, [], [], max_ids=4), speech_until_asked).feed([[1, 2]])
        assert (none_left.turns, none_left.layout.finish_reason) == ([], FinishReason.LENGTH)

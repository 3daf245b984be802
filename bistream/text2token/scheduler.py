"""Plans every step of the torch engine: integers in, ``StepPlan`` out, no tensors.

In: sessions opened, turns begun, sampled ids of earlier steps (``apply``). Out: the rows of the next step (``schedule``)
and updates for the turns' sinks. Called by the engine under its lock; not thread-safe by itself.

A step holds at most ``max_rows`` rows, by priority: one row of every decoding sequence, by urgency (``urgency``); text appended to
started sequences; chunks of new prompts. New prompts get the remaining rows, so one delays the others by at most one step with one chunk.
A quarter of the rows is reserved for feeding, so prompts and appended text cannot starve either. Feeding is first come,
first served; decoding sequences take turns (round robin) where not all fit.

Admission reserves the worst case: ``open`` allocates the blocks of ``max_ids`` positions, so none can run out later.
Steps may be planned before ``apply`` of an earlier plan: rows that turn out to lie after a stop id come back as ``INACTIVE``
and are ignored, as are ids of turns that were cancelled in the meantime.

An exception in the work for one sequence ends that sequence; the others of the step are planned, and their ids applied, as without it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from bistream.text2token.block_pool import BlockPool
from bistream.text2token.engine import (
    SEQUENCE_FAILED_SENTENCE,
    EngineStats,
    SamplingSpec,
    TokenSpace,
    TurnEnd,
    TurnLimits,
    TurnResult,
    TurnSink,
    cache_is_full,
    check_opening,
    check_turn,
)
from bistream.text2token.engine_settings import FEEDING_SHARE, EngineSettings
from bistream.text2token.sequence import (
    INACTIVE,
    NOT_FINITE,
    RunningTurn,
    Segment,
    SequenceRecord,
    SequenceState,
    SlotReset,
    StepPlan,
    TurnStart,
    TurnUpdate,
)
from bistream.text2token.urgency import Demand, StepShares

logger = logging.getLogger(__name__)

MIN_PARTIAL_IDS = 4  # copying a block pays off from this many ids on
NOT_FINITE_SENTENCE = "The language model produced invalid numbers for this session; start it again."


class Scheduler:
    def __init__(self, settings: EngineSettings, space: TokenSpace) -> None:
        self.settings = settings
        self.space = space
        self.pool = BlockPool(settings.num_blocks, settings.block_size)
        self.sequences: dict[str, SequenceRecord] = {}
        self._free_slots = list(range(settings.max_sessions - 1, -1, -1))
        self._decoding: deque[SequenceRecord] = deque()
        self._appending: deque[SequenceRecord] = deque()
        self._prompts: deque[SequenceRecord] = deque()
        self._starts: dict[int, TurnStart] = {}  # by slot: only the last one before a step takes effect
        self._copies: dict[int, int] = {}  # target block -> source block
        self._failed: list[TurnUpdate] = []  # turns that could not be planned
        self._shares = StepShares(settings.max_ahead_s)

    # -- sessions and turns ------------------------------------------------------------------------------------------

    def open(self, session_id: str, spec: SamplingSpec, max_ids: int) -> SequenceRecord:
        check_opening(session_id, self.sequences, self.settings.max_sessions, max_ids, self.settings.longest_sequence)
        blocks = self.pool.allocate(-(-max_ids // self.settings.block_size))
        if blocks is None:
            raise cache_is_full(session_id)
        sequence = SequenceRecord(session_id, self._free_slots.pop(), spec, max_ids, blocks)
        self.sequences[session_id] = sequence
        return sequence

    def begin_turn(self, sequence: SequenceRecord, append_ids: Sequence[int], limits: TurnLimits, sink: TurnSink) -> None:
        """Start a turn. Raises ``InvalidInputError`` (bad ids or limits, no room), ``UnknownSessionError`` (session ended)."""
        is_over = sequence.state in (SequenceState.ENDED, SequenceState.CLOSED)
        room = sequence.max_ids - sequence.num_ids - len(append_ids)
        check_turn(sequence.session_id, is_over, append_ids, limits, room, self.space)
        assert sequence.turn is None, "one turn in flight per session"
        leftover = () if sequence.unfed_id is None else (sequence.unfed_id,)
        turn = RunningTurn(limits, sink, (*leftover, *append_ids), min(limits.max_new_ids, room))
        sequence.turn, sequence.unfed_id, sequence.state = turn, None, SequenceState.FEEDING
        if self.settings.knows_texts:
            sequence.texts += [sequence.num_ids + place for place, number in enumerate(append_ids) if number < self.space.text_vocab_size]
        sequence.num_ids += len(append_ids)
        reset = None
        if not sequence.started:
            sequence.started = True
            self._share_prefix(sequence, turn)
            reset = SlotReset(sequence.session_id, sequence.spec, tuple(sequence.blocks))
            self._prompts.append(sequence)
        else:
            self._appending.append(sequence)
        self._starts[sequence.slot] = TurnStart(sequence.slot, limits, turn.max_new_ids, reset)

    def demand(self, sequence: SequenceRecord, demand: Demand) -> None:
        """Its caller asked for tokens."""
        demand.is_held = sequence.demand is not None and sequence.demand.is_held
        sequence.demand = demand

    def cancel(self, sequence: SequenceRecord) -> TurnUpdate | None:
        """End the turn in flight. Returns the update for its sink; ``None`` when there was no turn."""
        if sequence.turn is None:
            return None
        return TurnUpdate(sequence, sequence.turn.sink, result=self._end_turn(sequence, TurnResult(TurnEnd.CANCELLED)))

    def close(self, sequence: SequenceRecord) -> TurnUpdate | None:
        """Cancel and free everything the sequence holds. Idempotent."""
        if sequence.state is SequenceState.CLOSED:
            return None
        update = self.cancel(sequence)
        del self.sequences[sequence.session_id]
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        self._free_slots.append(sequence.slot)
        sequence.state = SequenceState.CLOSED
        return update

    def fail(self, sequence: SequenceRecord) -> TurnUpdate | None:
        """It can take no further turn, because its sink raised. Returns the update of the turn in flight, if any."""
        if sequence.turn is not None:
            return self._fail(sequence, sequence.turn, SEQUENCE_FAILED_SENTENCE)
        if sequence.state is not SequenceState.CLOSED:
            sequence.state = SequenceState.ENDED
        return None

    def fail_turns(self, turns: Sequence[tuple[SequenceRecord, RunningTurn]]) -> list[TurnUpdate]:
        """They could not be computed; those that have not ended meanwhile end with ERROR. What they wrote is not shared."""
        running = [(sequence, turn) for sequence, turn in turns if sequence.turn is turn]
        for sequence, _ in running:
            self.pool.forget(sequence.blocks)
        return [self._fail(sequence, turn, SEQUENCE_FAILED_SENTENCE) for sequence, turn in running]

    def fail_all(self, sentence: str) -> list[TurnUpdate]:
        """The engine failed: every turn in flight ends with ERROR. Sessions stay open until they are closed."""
        running = [(sequence, sequence.turn) for sequence in self.sequences.values() if sequence.turn is not None]
        return [self._fail(sequence, turn, sentence) for sequence, turn in running]

    # -- steps -------------------------------------------------------------------------------------------------------

    def has_work(self, now_s: float = 0.0) -> bool:
        if self._appending or self._prompts:
            return True
        return any(sequence.can_decode and not self._shares.is_held(sequence.demand, now_s) for sequence in self._decoding)

    def wake_after_s(self, now_s: float) -> float | None:
        """Seconds until a held sequence may go on; None without one."""
        held = [sequence.demand for sequence in self._decoding if sequence.can_decode]
        return self._shares.wake_after_s(held, now_s)

    def is_idle(self, now_s: float) -> bool:
        """Whether nobody waits for the next step: no text is to be fed, and all listeners have audio for a while."""
        if self._appending or self._prompts:
            return False
        return self._shares.is_idle([sequence.demand for sequence in self._decoding if sequence.can_decode], now_s)

    def somebody_waits(self, now_s: float) -> bool:
        """Whether a listener waits for the next step: a session is new, or its listener hears nothing, or soon will."""
        if self._prompts:
            return True
        demands = (sequence.demand for sequence in (*self._appending, *self._decoding))
        return self._shares.somebody_waits([demand for demand in demands if demand is not None], now_s)

    def schedule(self, now_s: float = 0.0) -> StepPlan | None:
        """The next step, or ``None`` when nothing can be computed now."""
        if not self.has_work(now_s):
            return None
        segments: list[Segment] = []
        sampling: list[tuple[SequenceRecord, RunningTurn]] = []
        budget = self.settings.max_rows
        num_feeding = sum(_num_unfed(sequence) for sequence in (*self._appending, *self._prompts))
        decoding = [(sequence, sequence.demand) for sequence in self._decoding if sequence.can_decode]
        ready, is_short = self._shares.choose(decoding, bool(num_feeding), now_s)
        budget -= self._take_decoding(ready[: budget - self._reserved(num_feeding)], segments, sampling)
        num_prompt_rows = sum(_num_unfed(sequence) for sequence in self._prompts)
        reserved = min(budget // 2 if self._appending else budget, self._reserved(num_prompt_rows))
        budget -= self._take_feeding(self._appending, budget - reserved, segments, sampling)
        self._take_feeding(self._prompts, budget, segments, sampling)
        plan = StepPlan(
            starts=tuple(self._starts.values()),
            copies=tuple((source, target) for target, source in self._copies.items()),
            segments=tuple(segments),
            sampling=tuple(sampling),
            is_short=is_short,
            waiting=tuple((sequence, sequence.turn) for sequence in (*self._appending, *self._prompts) if sequence.turn is not None),
            failed=tuple(self._failed),
        )
        for changes in (self._starts, self._copies, self._failed):
            changes.clear()
        return plan

    def apply(self, plan: StepPlan, head_rows: Sequence[int], places: Sequence[int] | None = None) -> list[TurnUpdate]:
        """Apply the result of a step: one row of the speech head (or a code of ``sequence.py``) per sampling segment.

        places: for each of them the number of the text id, among those of its sequence, that is spoken; -1: not known; None: no one's.
        """
        updates = []
        for (sequence, turn), head_row, place in zip(plan.sampling, head_rows, places or [-1] * len(head_rows), strict=True):
            if sequence.turn is not turn:
                continue  # the turn has ended since the step was planned
            try:
                updates.append(self._take_head_row(sequence, turn, head_row, None if place < 0 else len(sequence.texts) - 1 - place))
            except Exception:
                updates.append(self._fail_now(sequence, turn))
        return updates

    def stats(self) -> EngineStats:
        """``kv_tokens_used`` counts reserved positions; unowned blocks of the prefix cache can be evicted and are not counted."""
        size = self.settings.block_size
        running = sum(sequence.turn is not None for sequence in self.sequences.values())
        used = (self.pool.num_blocks - self.pool.num_available) * size
        return EngineStats(len(self.sequences), running, used, self.pool.num_blocks * size, len(self._appending) + len(self._prompts))

    def check_integrity(self) -> None:
        live = list(self.sequences.values())
        self.pool.check_integrity(sequence.blocks for sequence in live)
        slots = [sequence.slot for sequence in live] + self._free_slots
        assert sorted(slots) == list(range(self.settings.max_sessions)), "a slot is lost or owned twice"
        queued = [id(sequence) for sequence in (*self._decoding, *self._appending, *self._prompts)]
        assert sorted(queued) == sorted(id(sequence) for sequence in live if sequence.turn is not None)
        for sequence in live:
            sequence.check()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _share_prefix(self, sequence: SequenceRecord, turn: RunningTurn) -> None:
        """Start after the cached prefix of these ids: full blocks are shared, a partial one is copied."""
        match = self.pool.match(turn.feed)
        shared = [node.block for node in match.shared]
        for block in shared:
            self.pool.retain(block)
        self.pool.release(sequence.blocks[: len(shared)])
        sequence.blocks[: len(shared)] = shared
        num_ids = len(shared) * self.settings.block_size
        if match.partial is not None and match.num_partial >= MIN_PARTIAL_IDS:
            self._copies[sequence.blocks[len(shared)]] = match.partial.block
            num_ids += match.num_partial
        turn.num_fed = sequence.next_position = num_ids
        sequence.prompt_ids = turn.feed
        sequence.num_shared = len(shared)
        sequence.prefix_node = match.shared[-1] if match.shared else None

    def _reserved(self, num_waiting: int) -> int:
        return min(self.settings.max_rows // FEEDING_SHARE, num_waiting)

    def _take_decoding(
        self, sequences: Sequence[SequenceRecord], segments: list[Segment], sampling: list[tuple[SequenceRecord, RunningTurn]]
    ) -> int:
        """One row of each; they go to the end of the line."""
        left: list[SequenceRecord] = []
        if len(sequences) < len(self._decoding):
            taken = set(map(id, sequences))
            left = [sequence for sequence in self._decoding if id(sequence) not in taken]
        self._decoding = deque([*left, *sequences])
        for sequence in sequences:
            turn = sequence.turn
            assert turn is not None
            try:
                segment = Segment(sequence.slot, sequence.next_position, None, True, sequence.texts)
                sequence.next_position += 1
                turn.num_sampled += 1
            except Exception:
                self._failed.append(self._fail_now(sequence, turn))
                continue
            segments.append(segment)
            sampling.append((sequence, turn))
        return len(sequences)

    def _take_feeding(
        self,
        queue: deque[SequenceRecord],
        budget: int,
        segments: list[Segment],
        sampling: list[tuple[SequenceRecord, RunningTurn]],
    ) -> int:
        taken = 0
        while queue and taken < budget:
            sequence = queue[0]
            turn = sequence.turn
            assert turn is not None
            try:
                segment = self._feed(sequence, turn, budget - taken)
            except Exception:
                self._failed.append(self._fail_now(sequence, turn))
                continue
            segments.append(segment)
            taken += segment.num_rows
            if segment.samples:
                queue.popleft()
                turn.num_sampled = 1
                sequence.state = SequenceState.DECODING
                self._decoding.append(sequence)
                sampling.append((sequence, turn))
        return taken

    def _feed(self, sequence: SequenceRecord, turn: RunningTurn, room: int) -> Segment:
        """The next ids of a turn that fit; it samples with the last one."""
        ids = turn.feed[turn.num_fed : turn.num_fed + room]
        turn.num_fed += len(ids)
        sequence.next_position += len(ids)
        return Segment(sequence.slot, sequence.next_position - len(ids), ids, turn.num_fed == len(turn.feed), sequence.texts)

    def _register(self, sequence: SequenceRecord) -> None:
        """Offer the blocks of its prompt, the partial last one included: its first id shows that they are computed and finite."""
        size, node = self.settings.block_size, sequence.prefix_node
        for number in range(sequence.num_shared, -(-len(sequence.prompt_ids) // size)):
            node = self.pool.register(node, sequence.blocks[number], sequence.prompt_ids[number * size : (number + 1) * size])
            if node is None:
                break
        sequence.prefix_node, sequence.prompt_ids = None, ()

    def _take_head_row(self, sequence: SequenceRecord, turn: RunningTurn, head_row: int, texts_left: int | None) -> TurnUpdate:
        assert head_row != INACTIVE, "the device ended a turn that is still running on the host"
        if head_row == NOT_FINITE:
            self.pool.forget(sequence.blocks)
            return self._fail(sequence, turn, NOT_FINITE_SENTENCE)
        if sequence.prompt_ids:
            self._register(sequence)
        return self._take_id(sequence, turn, self.space.speech_offset + head_row, texts_left)

    def _take_id(self, sequence: SequenceRecord, turn: RunningTurn, token_id: int, texts_left: int | None) -> TurnUpdate:
        if not self.space.is_speech(token_id):
            sequence.next_position = sequence.num_ids
            return TurnUpdate(sequence, turn.sink, result=self._end_turn(sequence, TurnResult(TurnEnd.STOP, stop_id=token_id)))
        turn.num_new += 1
        sequence.num_ids += 1
        if sequence.demand is not None:
            sequence.demand.sampled(1.0 / self.space.tokens_per_second)
        result = None
        if turn.num_new == turn.max_new_ids:
            sequence.unfed_id = token_id
            sequence.next_position = sequence.num_ids - 1
            result = self._end_turn(sequence, TurnResult(TurnEnd.LENGTH))
        return TurnUpdate(sequence, turn.sink, (token_id,), result, texts_left)

    def _fail(self, sequence: SequenceRecord, turn: RunningTurn, sentence: str) -> TurnUpdate:
        return TurnUpdate(sequence, turn.sink, result=self._end_turn(sequence, TurnResult(TurnEnd.ERROR, error=sentence)))

    def _fail_now(self, sequence: SequenceRecord, turn: RunningTurn) -> TurnUpdate:
        """For the exception that is being handled, which concerns no other sequence."""
        logger.exception("session %s ends: its part of a step failed", sequence.session_id)
        return self._fail(sequence, turn, SEQUENCE_FAILED_SENTENCE)

    def _end_turn(self, sequence: SequenceRecord, result: TurnResult) -> TurnResult:
        for queue in (self._decoding, self._appending, self._prompts):
            if sequence in queue:
                queue.remove(sequence)
        sequence.turn = None
        sequence.prompt_ids = ()
        over = result.end in (TurnEnd.CANCELLED, TurnEnd.ERROR)
        sequence.state = SequenceState.ENDED if over else SequenceState.PARKED
        return result


def _num_unfed(sequence: SequenceRecord) -> int:
    return 0 if sequence.turn is None else len(sequence.turn.feed) - sequence.turn.num_fed

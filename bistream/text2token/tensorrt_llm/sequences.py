"""The sessions of the engine: admission, their ids, and what of them TensorRT-LLM has computed. Pure; called under the engine's lock.

Nothing of a session lives in TensorRT-LLM between turns but blocks in its cache, which it may drop: every turn sends ``SequenceState.ids``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from bistream.checkpoints.config import LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.text2token.engine import EngineStats, SamplingSpec, TurnLimits, cache_is_full, check_opening, check_turn
from bistream.text2token.engine_settings import room_for_all
from bistream.text2token.sampler import check_spec
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds
from bistream.text2token.tensorrt_llm.preflight import CACHE_PER_ADMITTED


@dataclass(frozen=True)
class Sizes:
    """kv_tokens: positions that sessions may reserve, over all of them. tokens_per_block: a power of two (TensorRT-LLM).
    temperature: the usual one."""

    max_sessions: int
    kv_tokens: int
    max_sequence_ids: int
    tokens_per_block: int = 32
    temperature: float = 1.0

    @property
    def longest_sequence(self) -> int:
        return min(self.max_sequence_ids, self.kv_tokens // self.tokens_per_block * self.tokens_per_block)

    @property
    def cache_tokens(self) -> int:
        """Positions of TensorRT-LLM's cache."""
        return CACHE_PER_ADMITTED * self.kv_tokens


def sizes_of(config: RuntimeConfig, model: LanguageModelConfig) -> Sizes:
    """Raises ``ConfigError`` for sizes that cannot work."""
    kv_tokens = config.kv_cache_tokens or room_for_all(config, config.max_session_tokens, Sizes.tokens_per_block)
    longest = min(model.max_position_embeddings, config.max_session_tokens)
    sizes = Sizes(config.max_sessions, kv_tokens, longest, temperature=model.temperature)
    if sizes.longest_sequence < 2:
        raise ConfigError(f"Parameter 'kv_cache_tokens' is {kv_tokens}; set it to {sizes.tokens_per_block} or more.")
    return sizes


class State(Enum):
    OPEN = "open"
    ENDED = "ended"  # a turn was cancelled or failed; only ``close`` is allowed
    CLOSED = "closed"


@dataclass(eq=False)
class SequenceState:
    """ids: the whole sequence, merged ids. num_computed: so many of them TensorRT-LLM has computed at some time."""

    session_id: str
    spec: SamplingSpec
    max_ids: int
    num_blocks: int  # reserved
    ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    state: State = State.OPEN
    in_turn: bool = False


class Sequences:
    def __init__(self, sizes: Sizes, merged: MergedIds) -> None:
        self.sizes = sizes
        self._merged = merged
        self.live: dict[str, SequenceState] = {}
        self._free_blocks = sizes.kv_tokens // sizes.tokens_per_block

    def open(self, session_id: str, spec: SamplingSpec, max_ids: int) -> SequenceState:
        """As ``Engine.open``."""
        check_spec(spec, spec.win_size, session_id)  # repetitions are ignored
        check_opening(session_id, self.live, self.sizes.max_sessions, max_ids, self.sizes.longest_sequence)
        num_blocks = -(-max_ids // self.sizes.tokens_per_block)
        if num_blocks > self._free_blocks:
            raise cache_is_full(session_id)
        self._free_blocks -= num_blocks
        self.live[session_id] = sequence = SequenceState(session_id, spec, max_ids, num_blocks)
        return sequence

    def begin_turn(self, sequence: SequenceState, append_ids: Sequence[int], limits: TurnLimits) -> int:
        """Append the ids. Returns the most ids that the turn may decode. Raises as ``EngineSequence.turn``."""
        room = sequence.max_ids - len(sequence.ids) - len(append_ids)
        check_turn(sequence.session_id, sequence.state is not State.OPEN, append_ids, limits, room, self._merged.space)
        assert not sequence.in_turn, "one turn in flight per session"
        sequence.ids += self._merged.to_merged(append_ids)
        sequence.in_turn = True
        return min(limits.max_new_ids, room)

    def add_decoded(self, sequence: SequenceState, ids: Sequence[int]) -> None:
        sequence.ids += self._merged.to_merged(ids)

    def end_turn(self, sequence: SequenceState, is_over: bool) -> None:
        sequence.in_turn = False
        if is_over and sequence.state is State.OPEN:
            sequence.state = State.ENDED

    def close(self, sequence: SequenceState) -> bool:
        """Free what it reserved. Returns False where that was done before."""
        if sequence.state is State.CLOSED:
            return False
        sequence.state = State.CLOSED
        del self.live[sequence.session_id]
        self._free_blocks += sequence.num_blocks
        return True

    def count_recomputed(self, sequence: SequenceState, num_prompt: int, num_cached: int) -> int:
        """Ids of a request's prompt that it computed although they had been before: the cache had dropped them, or never kept them."""
        num_new = num_prompt - sequence.num_computed
        return max(0, num_prompt - num_cached - num_new)

    def request_ended(self, sequence: SequenceState, by_stop_id: bool) -> None:
        """The row that sampled a stop id was fed the last id before it; after the last of ``max_tokens`` ids nothing was fed."""
        sequence.num_computed = len(sequence.ids) - (not by_stop_id)

    def stats(self, num_waiting: int) -> EngineStats:
        size = self.sizes.tokens_per_block
        total = self.sizes.kv_tokens // size
        running = sum(sequence.in_turn for sequence in self.live.values())
        return EngineStats(len(self.live), running, (total - self._free_blocks) * size, total * size, num_waiting)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless every block is free or reserved by exactly one live session."""
        reserved = sum(sequence.num_blocks for sequence in self.live.values())
        assert self._free_blocks + reserved == self.sizes.kv_tokens // self.sizes.tokens_per_block, "a block is lost or owned twice"
        for sequence in self.live.values():
            assert sequence.state is not State.CLOSED
            assert 0 <= sequence.num_computed <= len(sequence.ids) <= sequence.max_ids

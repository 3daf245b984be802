"""The interface between the session protocol (above) and the engine that runs the language model (below).

It is turn-level, because TensorRT-LLM and other engines own their step loop. A *turn* appends ids to a live sequence and
decodes until a stop id or a limit; between turns the sequence stays, whether its KV cache does or not. The ledger of its ids is kept
above the engine (``LayoutState.ledger``), so another sequence can continue it.

Contract, checked on every engine by one conformance suite:

- a stop id is never part of the sequence (it is not fed to the model); all yielded ids are;
- one turn in flight per session; ``turn`` may be called after any idle time;
- sinks are called from the engine's thread, in order, and must not block; ``on_end`` is the last call;
- a turn also ends with ``LENGTH`` when the session holds ``max_ids`` ids; appended ids that leave no room for one more
  are refused (``InvalidInputError``);
- ``cancel`` ends the turn in flight with ``TurnEnd.CANCELLED`` and does nothing when there is none; after a turn that ended
  with CANCELLED or ERROR the session accepts no further turn (``UnknownSessionError``) and can only be closed;
- ``close`` frees everything the session holds, is idempotent, and is the only way to free it; its turn in flight ends
  with CANCELLED;
- a failure that belongs to one turn, or to its sink, ends that turn with ERROR, and no other;
- when the engine itself fails, all turns in flight end with ERROR, ``healthy`` stays False, and ``open`` and
  ``turn`` raise ``EngineError``; after ``Engine.close`` they raise ``ShuttingDownError``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from bistream.checkpoints.config import LanguageModelConfig
from bistream.errors import BusyError, InvalidInputError, SessionExistsError, UnknownSessionError
from bistream.families.family import BlockLayout, SpeechIds, SpeechRows
from bistream.families.registry import DEFAULT_FAMILY

if TYPE_CHECKING:
    from bistream.gpu.tier import TierChoice

FAILED_SENTENCE = "The language model failed and all its sessions have ended; try again later."
SEQUENCE_FAILED_SENTENCE = "The server failed while it worked on this session; try again."


@dataclass(frozen=True)
class TokenSpace(SpeechIds):
    """One id space for everything the model can be fed: text ids, then speech rows, then what the family has behind them.

    Text ids are the tokenizer's. ``speech_offset + i`` is row i of the speech embedding and of the head: i < speech_token_size is the
    speech token i; ``rows`` says which of the rows behind them is which special id. blocks, tokens_per_second: what the family says of the
    sequences of these ids.
    """

    text_vocab_size: int
    speech_token_size: int
    rows: SpeechRows = DEFAULT_FAMILY.rows
    blocks: BlockLayout = DEFAULT_FAMILY.blocks
    tokens_per_second: int = DEFAULT_FAMILY.audio_format.tokens_per_second

    @classmethod
    def of(cls, sizes: LanguageModelConfig) -> TokenSpace:
        """The ids that this checkpoint can be fed."""
        return cls(sizes.text_vocab_size, sizes.speech_token_size, sizes.rows, sizes.blocks, sizes.tokens_per_second)

    @property
    def speech_offset(self) -> int:
        return self.text_vocab_size

    @property
    def specials(self) -> tuple[int, ...]:
        """The ids after the speech tokens that the head can produce; sampling any of them ends a turn."""
        return tuple(range(self.first_special, self.first_special + self.rows.num_scored))

    def specials_but(self, allowed: int) -> frozenset[int]:
        """``specials`` without one."""
        return frozenset(self.specials) - {allowed}

    @property
    def num_scores(self) -> int:
        """Rows of the head."""
        return self.speech_token_size + self.rows.num_scored

    @property
    def size(self) -> int:
        return self.first_special + self.rows.size

    def is_speech(self, token_id: int) -> bool:
        return self.speech_offset <= token_id < self.first_special

    def speech_token(self, token_id: int) -> int:
        """Raw code 0..speech_token_size-1 of a speech id."""
        return token_id - self.speech_offset


class TurnEnd(enum.Enum):
    STOP = "stop"  # a stop id was sampled: ``TurnResult.stop_id``
    LENGTH = "length"  # ``max_new_ids`` were yielded
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class TurnResult:
    end: TurnEnd
    stop_id: int | None = None  # with STOP
    error: str | None = None  # with ERROR: one sentence for the user


@dataclass(frozen=True)
class TurnLimits:
    """What one turn may decode.

    forbidden: ids among ``TokenSpace.specials`` that are masked (score minus infinity) throughout the turn.
    forbidden_early: more such ids, masked until the turn has yielded ``min_new_ids`` ids.
    record_on_length: id that enters the sampler's history when the turn ends with LENGTH (the fill that the protocol
        forces by index: it counts as decided, but is not sampled, yielded or fed).
    """

    max_new_ids: int
    min_new_ids: int = 0
    forbidden: frozenset[int] = frozenset()
    forbidden_early: frozenset[int] = frozenset()
    record_on_length: int | None = None


@dataclass(frozen=True)
class SamplingSpec:
    """Repetition-aware sampling (``ras``): nucleus sampling (top-p, top-k); if the drawn id occurs at least ``win_size * tau_r``
    times among the session's last ``win_size`` decided ids (fill included), it is redrawn from the full softmax without that id.

    temperature 0 is greedy: arg-max of the masked scores, no repetition rule. A session's ids depend on its seed alone, in any company.
    TensorRT-LLM knows neither seeds nor the rule against repetition.
    """

    top_p: float = 0.8
    top_k: int = 25
    win_size: int = 10
    tau_r: float = 0.1
    temperature: float = 1.0
    seed: int = 0


class TurnSink(Protocol):
    """Receives the output of one turn. Called from the engine's thread; must not block. If it raises, the turn ends with ERROR."""

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        """texts_left: text ids in the sequence behind the one that the last of ``ids`` speaks, from an engine that knows."""

    def on_end(self, result: TurnResult) -> None: ...


class EngineSequence(Protocol):
    """An engine's handle of one session: its ids and their keys and values."""

    def turn(self, append_ids: Sequence[int], limits: TurnLimits, sink: TurnSink) -> None:
        """Append ids (at least one) and decode. Returns at once; raises ``BusyError`` only in engines whose ``open`` cannot reserve.

        Raises ``InvalidInputError``, ``UnknownSessionError``, ``EngineError``, ``ShuttingDownError`` (contract above).
        """

    def cancel(self) -> None:
        """End the turn in flight, if any, within two steps."""

    def close(self) -> None:
        """Cancel and free everything. Idempotent."""


@runtime_checkable
class TakesDemands(Protocol):
    """An ``EngineSequence`` whose engine orders its work by what listeners need. Others, which own their order, lack this."""

    def demand(self, slack_s: float, wanted_tokens: int) -> None:
        """The caller asks for tokens. slack_s: audio seconds that its listener has, and those of all tokens yielded so far; wanted_tokens:
        further ones that are useful to it now."""

    def kept(self, count: int) -> None:
        """So many of the tokens yielded since the last demand did not reach the caller; below 0: so many of those did now."""


@dataclass(frozen=True)
class EngineStats:
    """Resources in use now; the conformance suite checks them for leaks."""

    sessions: int
    running_turns: int
    kv_tokens_used: int
    kv_tokens_total: int
    waiting_turns: int = 0  # with ids that no step has taken yet


class Engine(Protocol):
    @property
    def longest_sequence(self) -> int:
        """Ids of a sequence, at the most."""

    @property
    def tiers(self) -> tuple[TierChoice, ...]:
        """The tier that serves each network; empty where the engine's library decides that."""

    @property
    def healthy(self) -> bool:
        """False once the engine itself has failed: make a new one or exit the process."""

    def open(self, session_id: str, spec: SamplingSpec, max_ids: int) -> EngineSequence:
        """Admit a session of at most ``max_ids`` positions.

        Raises ``BusyError`` at once when they cannot be guaranteed, ``InvalidInputError`` for a ``spec`` out of range
        or ``max_ids`` above ``longest_sequence``, ``SessionExistsError`` for an id in use.
        """

    def stats(self) -> EngineStats: ...

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless every resource is free or owned by exactly the live sessions."""

    def close(self) -> None:
        """Stop the engine's thread; turns in flight end with CANCELLED."""


# What every engine refuses, in the same words


def check_opening(session_id: str, open_ids: Collection[str], max_sessions: int, max_ids: int, longest_sequence: int) -> None:
    """Raises as ``Engine.open`` does, but for the room in the cache."""
    if session_id in open_ids:
        raise SessionExistsError(f"Session {session_id} is open; close it or use another id.", session_id)
    if not 1 < max_ids <= longest_sequence:
        raise InvalidInputError(
            f"The session may need {max_ids} positions, but the server allows {longest_sequence}; send less text or raise kv_cache_tokens.",
            session_id,
        )
    if len(open_ids) >= max_sessions:
        raise BusyError(f"All {max_sessions} sessions are in use; try again later.", session_id)


def cache_is_full(session_id: str) -> BusyError:
    return BusyError("The key-value cache is full; try again later or raise kv_cache_tokens.", session_id)


def check_turn(session_id: str, is_over: bool, append_ids: Sequence[int], limits: TurnLimits, room: int, space: TokenSpace) -> None:
    """Raises as ``EngineSequence.turn`` does. is_over: the session takes no further turn. room: positions that the appended ids leave."""
    if is_over:
        raise UnknownSessionError("The session has ended; start a new one.", session_id)
    if not append_ids or not all(0 <= token_id < space.size for token_id in append_ids):
        raise InvalidInputError("A turn must append at least one id, all from the model's id space.", session_id)
    if limits.max_new_ids < 1 or not (limits.forbidden | limits.forbidden_early) <= set(space.specials):
        raise InvalidInputError("A turn must allow at least one new id and may forbid only stop ids.", session_id)
    if room < 1:
        raise InvalidInputError("The session has reached its length limit; start a new one for more text.", session_id)

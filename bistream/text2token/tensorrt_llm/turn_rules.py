"""What a turn asks of TensorRT-LLM, request by request. Pure: ids and counts, no clock, no threads, no tensors.

TensorRT-LLM cannot forbid an id for a part of a request, so forbidden stop ids are *rejected*: when a request ends with one, the turn asks
again for what is missing. The first id of the new request is drawn with the forbidden ids masked (``Request.masked``), so greedy turns get
on, too. An id so drawn has the distribution of the masked scores, except where the mask changes which ids the nucleus holds: the unmasked
draw that was accepted keeps the nucleus with the stop id in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bistream.text2token.engine import TokenSpace, TurnEnd, TurnLimits, TurnResult

MOST_REJECTIONS = 8  # in a row, without an id between: the mask is not honoured
REJECTED_SENTENCE = "The language model ended a session too early again and again; start it again."


@dataclass(frozen=True)
class Request:
    """max_tokens: ids to decode. masked: forbidden ids (``TokenSpace``) throughout the request."""

    max_tokens: int
    masked: frozenset[int] = frozenset()


@dataclass
class TurnRules:
    """max_new_ids: the turn's limit or the session's remaining room, whichever is smaller. num_new: ids yielded so far."""

    space: TokenSpace
    limits: TurnLimits
    max_new_ids: int
    num_new: int = 0
    num_rejected: int = 0  # in the whole turn
    _in_a_row: int = 0

    @property
    def forbidden(self) -> frozenset[int]:
        """Stop ids that must not end the turn here."""
        early = self.limits.forbidden_early if self.num_new < self.limits.min_new_ids else frozenset()
        return self.limits.forbidden | early

    def next_request(self) -> Request:
        if self._in_a_row:
            return Request(1, self.forbidden)
        return Request(self.max_new_ids - self.num_new)

    def accept(self, ids: Sequence[int]) -> tuple[list[int], int | None]:
        """Ids of a response, up to the first stop id or the turn's end: those to yield, and that stop id."""
        accepted: list[int] = []
        for token_id in ids:
            if not self.space.is_speech(token_id):
                return accepted, token_id
            if self.num_new == self.max_new_ids:
                break
            accepted.append(token_id)
            self.num_new += 1
            self._in_a_row = 0
        return accepted, None

    def ended(self, stop_id: int | None) -> TurnResult | None:
        """A request ended, with a stop id or because it had ``max_tokens``. The turn's end, or None: ask again."""
        if self.num_new == self.max_new_ids:
            return TurnResult(TurnEnd.LENGTH)
        if stop_id is None:
            return None
        if stop_id not in self.forbidden:
            return TurnResult(TurnEnd.STOP, stop_id)
        self.num_rejected += 1
        self._in_a_row += 1
        if self._in_a_row > MOST_REJECTIONS:
            return TurnResult(TurnEnd.ERROR, error=REJECTED_SENTENCE)
        return None

"""Upstream's layouts, token for token (cosyvoice/llm/llm.py, ``inference`` and ``inference_bistream``), on the book-keeping of ours.

The bi-stream layout differs from ours:

(1) after a fill it takes one block per arriving piece, so text of longer pieces accumulates until the end;
(2) if the text ends after a fill, the last id fed (the block's last speech token) is fed again before ``task``;
(3) prompt speech without enough text for its blocks is dropped when the text ends;
(4) after a prompt whose speech exactly fills its last block, 15 more tokens are decoded without new text;
(5) ids that can only be errors stay possible (and raise ``EngineError``): within a block only the first special id is masked, which is
    eos in CosyVoice2 and sos in CosyVoice3; and the final phase has no length limit;
(6) in CosyVoice2 an instruction is prompt text without prompt speech, so its own ids fill blocks: speech is decoded, and heard, before
    there is any new text. For CosyVoice3 upstream moved it before the blocks (``instruction_ids``);
(7) behind an instruction and without prompt speech the first block has no text: 15 tokens are decoded from sos and instruction alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bistream.text2token.engine import TurnLimits, TurnResult
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import UNLIMITED_IDS, Turn


class ReferenceInterleaver(Interleaver):
    """Each ``push_text`` is one arriving piece. CosyVoice2's instructions are prompt text."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._arrivals: deque[list[int]] = deque()  # not yet processed

    def push_text(self, ids: Sequence[int]) -> None:
        assert not self._text_ended, "text after the end of the text"
        self._arrivals.append(list(ids))

    def next_turn(self) -> Turn | None:
        if self.finish_reason is not None or self._turn is not None:
            return None
        while self._arrivals:
            self._text.extend(piece := self._arrivals.popleft())
            self.num_text_pushed += len(piece)
            turn = self._turn_of_arrival()
            if turn is not None or self.finish_reason is not None:
                return turn
        if not self._text_ended:
            return None
        self._in_final_phase = True
        self._pending += [*self._take_text(len(self._text)), self.space.task]
        return self._start_block(TurnLimits(UNLIMITED_IDS))

    def turn_ended(self, ids: Sequence[int], result: TurnResult) -> None:
        turn = self._turn
        assert turn is not None
        super().turn_ended(ids, result)
        self._pending = [ids[-1]] if ids else list(turn.append_ids)  # its last input, see (2)

    def _turn_of_arrival(self) -> Turn | None:
        self._append_prompt_blocks()
        if self._prompt_speech:
            return None
        forced_at = self._speech_due
        if self.ledger or self._pending == [self.space.sos]:
            # After a fill, and at the very start, a block of text is needed. One per piece, see (1); and see (7).
            if len(self._text) < self._text_block:
                return None
            block = self._take_text(self._text_block)
            self._pending = block if self.ledger else self._pending + block
            forced_at = self._speech_block
        elif forced_at == 0:
            forced_at = self._speech_block  # see (4)
        limits = TurnLimits(forced_at, forbidden=frozenset({self.space.first_special}), record_on_length=self.space.fill)  # see (5)
        return self._start_block(limits)


class ReferenceUnistreamLayout(UnistreamLayout):
    """Every special id stays possible and ends the session like eos; early, only the first of them is masked, which upstream takes for eos:
    in CosyVoice3 it is sos, so eos may come at once."""

    def _start(self, append_ids: Sequence[int], limits: TurnLimits) -> Turn | None:
        return super()._start(append_ids, replace(limits, forbidden=frozenset(), forbidden_early=frozenset({self.space.first_special})))

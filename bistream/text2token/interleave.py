"""The bi-stream and uni-stream layouts: text ids in, turns for the engine out. Pure: no torch, no clock, no threads.

Called by ``text2token.service``. The layouts of training, with 5 text and 15 speech tokens per block:

    bi-stream    sos [5 text][15 speech] [5 text][15 speech] ... [0-4 text] task [remaining speech] eos
    uni-stream   sos [all text] task [all speech] eos

The text is the prompt text followed by the new text, the speech the prompt's followed by the model's. An instruction follows ``sos`` as a
whole, in either layout, before the first block. After the 15 speech
tokens of a block the training target is *fill*: a request for more text, never an input. A turn appends the next ids and
decodes until the block is full (fill, forced by index) or the model samples fill itself, or, after ``task``, samples eos.

The ids fed to the model depend on the text (and on the ids that the engine samples), never on where the text was cut or when it arrived.
Upstream's depend on it: ``tests/parity/reference_layouts.py`` has the differences.
"""

from __future__ import annotations

from collections.abc import Sequence

from bistream.text2token.engine import TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.layout import LayoutState, Turn
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FinishReason


class Interleaver(LayoutState):
    """The bi-stream layout of one session."""

    def __init__(
        self,
        space: TokenSpace,
        prompt_text_ids: Sequence[int],
        prompt_speech_ids: Sequence[int],
        mix_ratio: tuple[int, int] | None = None,
        max_ids: int | None = None,
        instruction_ids: Sequence[int] = (),
        lengths: SpeechLengths | None = None,
    ) -> None:
        """prompt_speech_ids: in ``TokenSpace`` numbering. mix_ratio: None: the family's. max_ids: positions of the session, None for no
        limit. instruction_ids: see the module's docstring."""
        super().__init__(space, prompt_text_ids, prompt_speech_ids, max_ids, lengths)
        self._text_block, self._speech_block = mix_ratio or (space.blocks.text_tokens, space.blocks.speech_tokens)
        self._pending: list[int] = [space.sos, *instruction_ids]  # to be appended by the next turn
        self._speech_due = 0  # speech tokens still missing in the open block; 0: the next block needs text
        self._in_final_phase = False

    def next_turn(self) -> Turn | None:
        if self.finish_reason is not None or self._turn is not None:
            return None
        self._append_prompt_blocks()
        if not self._prompt_speech:
            if self._speech_due == 0 and len(self._text) >= self._text_block:
                self._pending += self._take_text(self._text_block)
                self._speech_due = self._speech_block
            if self._speech_due > 0:
                limits = TurnLimits(self._speech_due, forbidden=self.space.specials_but(self.space.fill), record_on_length=self.space.fill)
                return self._start_block(limits)
        return self._start_final_phase() if self._text_ended else None

    def turn_ended(self, ids: Sequence[int], result: TurnResult) -> None:
        turn = self._end_turn(ids, result)
        if self.finish_reason is not None:
            return
        if self._in_final_phase:
            self._end_final_phase(result)
        elif result.end is TurnEnd.STOP and result.stop_id != self.space.fill:
            raise self._unexpected(result.stop_id)
        elif result.end is TurnEnd.LENGTH and turn.limits.record_on_length is None:
            self.finish_reason = FinishReason.LENGTH  # the session ran out of positions inside the block
        else:
            self._speech_due = 0

    def _end_final_phase(self, result: TurnResult) -> None:
        if result.end is TurnEnd.LENGTH:
            self.finish_reason = FinishReason.LENGTH
        elif result.stop_id == self.space.eos:
            self.finish_reason = FinishReason.EOS
        else:
            raise self._unexpected(result.stop_id)

    def _append_prompt_blocks(self) -> None:
        while self._prompt_speech and len(self._text) >= self._text_block:
            self._pending += self._take_text(self._text_block)
            speech = self._take_prompt_speech(self._speech_block)
            self._pending += speech
            self._speech_due = self._speech_block - len(speech)

    def _start_block(self, limits: TurnLimits) -> Turn | None:
        append_ids, self._pending = self._pending, []
        return self._start(append_ids, limits)

    def _start_final_phase(self) -> Turn | None:
        """Append the remaining text, ``task`` and, as in training, the remaining prompt speech; decode until eos.

        The whole text has at most ``_most_speech`` tokens, including those of the blocks; only tokens decoded for blocks of prompt text
        alone (a prompt with more text than speech) are not counted.
        """
        self._in_final_phase = True
        limit = self._most_speech - self.num_speech_of_text
        if limit < 1:
            self.finish_reason = FinishReason.LENGTH
            return None
        self._pending += [*self._take_text(len(self._text)), self.space.task, *self._take_prompt_speech(len(self._prompt_speech))]
        return self._start_block(TurnLimits(limit, forbidden=self.space.specials_but(self.space.eos)))


class UnistreamLayout(LayoutState):
    """The uni-stream layout: exactly one turn, started when the text is complete.

    2 to 20 speech tokens per new text token (upstream's ``min_token_text_ratio`` and ``max_token_text_ratio``), or less (``lengths``).
    silent_ids: text tokens that need not be spoken and so count for the maximum alone: a text of marks would otherwise be forced to babble.
    """

    def __init__(
        self,
        space: TokenSpace,
        prompt_text_ids: Sequence[int],
        prompt_speech_ids: Sequence[int],
        max_ids: int | None = None,
        silent_ids: frozenset[int] = frozenset(),
        lengths: SpeechLengths | None = None,
    ) -> None:
        super().__init__(space, prompt_text_ids, prompt_speech_ids, max_ids, lengths)
        self._silent_ids = silent_ids
        self._num_silent = 0  # of the new text tokens pushed

    def push_text(self, ids: Sequence[int]) -> None:
        super().push_text(ids)
        self._num_silent += sum(token_id in self._silent_ids for token_id in ids)

    def next_turn(self) -> Turn | None:
        if self.finish_reason is not None or self._turn is not None or not self._text_ended:
            return None
        limits = TurnLimits(
            max_new_ids=self._most_speech,
            min_new_ids=self.space.blocks.min_speech_per_text * (self.num_text_pushed - self._num_silent),
            forbidden=self.space.specials_but(self.space.eos),
            forbidden_early=frozenset({self.space.eos}),
        )
        text = self._take_text(len(self._text))
        return self._start([self.space.sos, *text, self.space.task, *self._take_prompt_speech(len(self._prompt_speech))], limits)

    def turn_ended(self, ids: Sequence[int], result: TurnResult) -> None:
        self._end_turn(ids, result)
        if self.finish_reason is None:
            self.finish_reason = FinishReason.EOS if result.end is TurnEnd.STOP else FinishReason.LENGTH

"""Makes a session's layout from its prompt, and says how many positions its sequences need. Pure; used by the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bistream.errors import InvalidInputError
from bistream.text2token.cut_places import CutPlaces
from bistream.text2token.engine import TokenSpace
from bistream.text2token.factory import LanguageModelParts
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import Anchor, TokenLayout
from bistream.text2token.segments import SegmentedLayout, SegmentLimits
from bistream.text2token.speech_lengths import SpeechLengths

ANCHOR_SHARE = 0.6  # of the room behind a prompt: what text and speech of an earlier session may take


@dataclass(frozen=True)
class PromptIds:
    """In ``TokenSpace`` numbering. instruction: it precedes the text in both layouts.

    Of a one-table model: speaker: ``SpeakerTokens.numbers``. before: what a first sentence continues.
    """

    instruction: Sequence[int]
    text: Sequence[int]
    speech: Sequence[int]
    speaker: Sequence[int] = ()
    before: Anchor | None = None

    @property
    def count(self) -> int:
        return len(self.instruction) + len(self.text) + len(self.speech)


class SessionLayouts:
    """For the sessions of one checkpoint, in sequences of ``max_ids`` positions at most."""

    def __init__(self, parts: LanguageModelParts, max_ids: int) -> None:
        tokenizer = parts.tokenizer
        phones = frozenset(tokenizer.special_tokens[token] for token in tokenizer.spoken_tokens)
        self._space = TokenSpace.of(parts.sizes)
        self._mix_ratio = parts.sizes.mix_ratio
        self._longest_utterance_s = parts.card.longest_utterance_s
        self._bytes_of = tokenizer.bytes_of
        self._lengths = SpeechLengths(tokenizer.bytes_of, phones, self._space.tokens_per_second)
        self._silent_ids = frozenset(tokenizer.special_tokens.values()) - phones
        self._max_ids = max_ids

    def beginning(self, prompt: PromptIds, is_whole: bool, anchor: Anchor) -> PromptIds | None:
        """The prompt of a first sequence that continues the anchor; None: it would take too much room, or the first audio would come later.

        Where all text stands before all speech, the anchor follows the voice's prompt. In blocks, the speech of a prompt stands beside new
        text where its own text is too short for it, as that of every ordinary speech is; so there the anchor takes the place of the
        prompt, which is the same voice, and joins only if the first block waits for no more text. Its first tokens are left out, at most
        a block of them, so that blocks end where the rules of hops expect it (``hops/policy.py``).
        """
        if anchor.count > ANCHOR_SHARE * self._limits(prompt).room:
            return None
        if is_whole:
            return replace(prompt, text=[*prompt.text, *anchor.text], speech=[*prompt.speech, *anchor.speech])
        left_out = (len(anchor.speech) - len(prompt.speech)) % self._mix_ratio[1]
        alone = replace(prompt, text=anchor.text, speech=anchor.speech[left_out:])
        return alone if alone.speech and self.awaited_text(alone) <= self.awaited_text(prompt) else None

    def awaited_text(self, prompt: PromptIds) -> int:
        """Text tokens of a session fed in pieces without which the first block behind its prompt is not complete."""
        text_block, speech_block = self._mix_ratio
        return max(0, text_block * (len(prompt.speech) // speech_block + 1) - len(prompt.text))

    def positions(self, prompt: PromptIds, num_text: int, is_whole: bool, first: PromptIds | None = None) -> int:
        """To reserve for each of the session's sequences (see the service). num_text: text tokens that are known at the start. first: of
        ``beginning``.

        Raises ``InvalidInputError`` where not even one text token has room.
        """
        num_fed = prompt.count + 2  # sos and task
        least = num_fed + min(num_text, 1) + max(1, self._space.blocks.min_speech_per_text * min(num_text, 1))
        if least > self._max_ids:
            raise InvalidInputError(
                f"The reference needs at least {least} tokens, but a session may have at most {self._max_ids}; use a shorter reference."
            )
        most = num_fed + self._limits(prompt).positions
        if is_whole:
            most = min(most, (first or prompt).count + 2 + (1 + self._space.blocks.max_speech_per_text) * num_text)
        return min(most, self._max_ids)

    def make(self, prompt: PromptIds, is_whole: bool, max_ids: int, first: PromptIds | None = None) -> SegmentedLayout:
        """is_whole: the uni-stream layout from the first segment on. max_ids: of ``positions``. first: of ``beginning``."""

        def following(text: Sequence[int], speech: Sequence[int]) -> TokenLayout:
            return self._whole(replace(prompt, text=[*prompt.text, *text], speech=[*prompt.speech, *speech]), max_ids)

        first, limits = first or prompt, self._limits(prompt)
        layout = self._whole(first, max_ids) if is_whole else self._pieces(first, max_ids)
        first_limits = replace(limits, room=limits.room - max(0, len(first.speech) - len(prompt.speech)))
        return SegmentedLayout(layout, limits, CutPlaces(self._bytes_of), self._lengths, following, first_limits)

    def _limits(self, prompt: PromptIds) -> SegmentLimits:
        size = self._max_ids - prompt.count, len(prompt.speech), self._lengths.ordinary(prompt.text)
        return SegmentLimits.of(self._longest_utterance_s, *size, self._space.tokens_per_second)

    def _whole(self, prompt: PromptIds, max_ids: int) -> TokenLayout:
        ids = ([*prompt.instruction, *prompt.text], prompt.speech)
        return UnistreamLayout(self._space, *ids, max_ids=max_ids, silent_ids=self._silent_ids, lengths=self._lengths)

    def _pieces(self, prompt: PromptIds, max_ids: int) -> TokenLayout:
        return Interleaver(
            self._space,
            prompt.text,
            prompt.speech,
            mix_ratio=self._mix_ratio,
            max_ids=max_ids,
            instruction_ids=prompt.instruction,
            lengths=self._lengths,
        )

"""Makes a session's layout from its prompt, and says how many positions its sequences need. Pure; used by the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bistream.errors import InvalidInputError
from bistream.text2token.cut_places import CutPlaces
from bistream.text2token.engine import TokenSpace
from bistream.text2token.factory import LanguageModelParts
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import TokenLayout
from bistream.text2token.segments import Prompt, SegmentedLayout, SegmentLimits
from bistream.text2token.speech_lengths import SpeechLengths


@dataclass(frozen=True)
class PromptIds:
    """In ``TokenSpace`` numbering. instruction: it precedes the text in both layouts."""

    instruction: Sequence[int]
    text: Sequence[int]
    speech: Sequence[int]

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

    def positions(self, prompt: PromptIds, num_text: int, is_whole: bool) -> int:
        """To reserve for each of the session's sequences (see the service). num_text: text tokens that are known at the start.

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
            most = min(most, num_fed + (1 + self._space.blocks.max_speech_per_text) * num_text)
        return min(most, self._max_ids)

    def make(self, prompt: PromptIds, is_whole: bool, max_ids: int) -> SegmentedLayout:
        """is_whole: the uni-stream layout from the first segment on. max_ids: of ``positions``."""

        def whole(text: Sequence[int], speech: Sequence[int]) -> TokenLayout:
            ids = ([*prompt.instruction, *prompt.text, *text], [*prompt.speech, *speech])
            return UnistreamLayout(self._space, *ids, max_ids=max_ids, silent_ids=self._silent_ids, lengths=self._lengths)

        first = whole((), ()) if is_whole else self._pieces(prompt, max_ids)
        return SegmentedLayout(first, self._limits(prompt), CutPlaces(self._bytes_of), self._lengths, whole)

    def _limits(self, prompt: PromptIds) -> SegmentLimits:
        size = Prompt(prompt.count, len(prompt.speech), self._lengths.ordinary(prompt.text))
        return SegmentLimits.of(self._longest_utterance_s, self._max_ids, size, self._space.tokens_per_second)

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

"""Makes a session's layout from its prompt, as ``session_layout.SessionLayouts`` does for models with a speech table. Pure."""

from __future__ import annotations

from dataclasses import replace

from bistream.checkpoints.one_table import OneTableConfig
from bistream.errors import InvalidInputError
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.cut_places import CutPlaces
from bistream.text2token.engine import TokenSpace
from bistream.text2token.layout import Anchor
from bistream.text2token.one_table.continuation import Continuation, Spoken, bare_prompt
from bistream.text2token.one_table.prompts import SpeakerTokens
from bistream.text2token.one_table.sentence_layout import SentenceLayout, sentence_limits
from bistream.text2token.segments import pace_of
from bistream.text2token.session_layout import PromptIds
from bistream.text2token.speech_lengths import SpeechLengths

LEAST_ROOM_S = 5.0  # that a recording must leave for a sentence and its speech


class SentenceLayouts:
    """For the sessions of one checkpoint, in sequences of ``max_ids`` positions at most."""

    def __init__(self, sizes: OneTableConfig, tokenizer: TextTokenizer, max_ids: int) -> None:
        self._sizes = sizes
        self._space = TokenSpace.of(sizes)
        self._tokenizer = tokenizer
        self._lengths = SpeechLengths(tokenizer.bytes_of, tokens_per_second=sizes.tokens_per_second)
        self._longest = min(max_ids, sizes.longest_sequence)

    def beginning(self, prompt: PromptIds, is_whole: bool, anchor: Anchor) -> PromptIds | None:
        """As of ``SessionLayouts``. It costs no wait: sentences that were spoken before are left out where there is no room."""
        return replace(prompt, before=anchor)

    def positions(self, prompt: PromptIds, num_text: int, is_whole: bool, first: PromptIds | None = None) -> int:
        """To reserve for each of the session's sequences: the most, for each may continue those before.

        Raises ``InvalidInputError`` for a prompt without a voice, or one that leaves no room for a sentence.
        """
        needed = self._bare_positions(prompt)
        if needed + LEAST_ROOM_S * self._sizes.tokens_per_second > self._longest:
            raise InvalidInputError(
                f"The reference needs {needed} of the {self._longest} positions of this model, which leaves no room for speech; use a "
                "shorter reference, or one without its transcript."
            )
        return self._longest

    def make(self, prompt: PromptIds, is_whole: bool, max_ids: int, first: PromptIds | None = None) -> SentenceLayout:
        """max_ids: of ``positions``. first: of ``beginning``. is_whole makes no difference: a text is cut the same however it comes."""
        speaker, recording = self._speaker(prompt), self._recording(prompt)
        pace = pace_of(len(prompt.speech), self._lengths.ordinary(prompt.text), self._sizes.tokens_per_second)
        limits = sentence_limits(self._sizes.tokens_per_second, max_ids - self._bare_positions(prompt), pace)
        continuation = Continuation(self._sizes.tokens, self._tokenizer.encode, speaker, recording, max_ids, self._before(first))
        places = CutPlaces(self._tokenizer.bytes_of)
        return SentenceLayout(self._space, continuation, limits, places, self._lengths, self._tokenizer.decode)

    def _bare_positions(self, prompt: PromptIds) -> int:
        return len(bare_prompt(self._sizes.tokens, self._tokenizer.encode, self._speaker(prompt), self._recording(prompt)))

    def _speaker(self, prompt: PromptIds) -> SpeakerTokens:
        try:
            speaker = SpeakerTokens.of(prompt.speaker)
            speaker.ids(self._sizes.tokens)
        except (ValueError, IndexError):
            raise InvalidInputError(
                f"The voice has {len(prompt.speaker)} speaker tokens, which are none of this model; send a recording, or a voice made with "
                "it."
            ) from None
        return speaker

    def _before(self, first: PromptIds | None) -> Spoken | None:
        if first is None or first.before is None:
            return None
        return Spoken(self._tokenizer.decode(first.before.text), tuple(map(self._space.speech_token, first.before.speech)))

    def _recording(self, prompt: PromptIds) -> Spoken | None:
        """None without a transcript: speech whose text the model does not see would be spoken text to it."""
        text = self._tokenizer.decode(prompt.text)
        if not text.strip() or not prompt.speech:
            return None
        return Spoken(text, tuple(map(self._space.speech_token, prompt.speech)))

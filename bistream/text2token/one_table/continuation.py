"""The prompt of a sentence: a continuation of the recording and of the sentences spoken before, text and speech. Pure.

To the model the sentence then stands in the middle of one long utterance, the form that it was trained on. Training dropped sequences of
more than ``OneTableConfig.longest_sequence`` ids, so the oldest sentences are left out, with their speech, until the sentence has room;
the recording stays, because it is the voice. Only sentences that ended by themselves are continued: of one that was cut or ran away, text
and speech do not belong together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bistream.families.bicodec_tokens import BiCodecTokens
from bistream.text2token.one_table.prompts import Encode, SpeakerTokens, clone_prompt, continued_prompt, joined


@dataclass(frozen=True)
class Spoken:
    """A text and its speech, codes of semantic tokens."""

    text: str
    semantic: tuple[int, ...]


class Continuation:
    """Of one session."""

    def __init__(
        self,
        tokens: BiCodecTokens,
        encode: Encode,
        speaker: SpeakerTokens,
        recording: Spoken | None,
        longest: int,
        before: Spoken | None = None,
    ) -> None:
        """recording: None for a voice without a transcript. longest: positions of a prompt and the speech after it. before: the last
        sentence of an earlier session that this one continues."""
        self._tokens, self._encode, self._speaker = tokens, encode, speaker
        self._recording = recording
        self._longest = longest
        self._spoken = deque[Spoken](() if before is None else (before,))

    def prompt(self, text: str, num_speech: int) -> list[int]:
        """Of a sentence that may take ``num_speech`` speech tokens. Without anything to leave out it may leave less room than that.

        Sentences that are left out do not come back: their successors have taken their place.
        """
        while (ids := self._prompt(text)) and len(ids) + num_speech > self._longest and self._spoken:
            self._spoken.popleft()
        return ids

    def room(self, prompt: Sequence[int]) -> int:
        """Positions behind a prompt."""
        return self._longest - len(prompt)

    def spoke(self, text: str, semantic: Sequence[int]) -> None:
        """The sentence of the last prompt has ended by itself."""
        self._spoken.append(Spoken(text, tuple(semantic)))

    def _prompt(self, text: str) -> list[int]:
        before = [*([] if self._recording is None else [self._recording]), *self._spoken]
        transcript = ""
        for one in before:
            transcript = joined(transcript, one.text)
        semantic = [code for one in before for code in one.semantic]
        return continued_prompt(self._tokens, self._encode, transcript, text, self._speaker, semantic)


def bare_prompt(tokens: BiCodecTokens, encode: Encode, speaker: SpeakerTokens, recording: Spoken | None) -> list[int]:
    """Of no text: what every prompt of a session has at least."""
    if recording is None:
        return clone_prompt(tokens, encode, "", speaker)
    return continued_prompt(tokens, encode, recording.text, "", speaker, recording.semantic)

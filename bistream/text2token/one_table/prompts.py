"""The three prompts of a one-table model, as ids of its table. Pure. Source: ``process_prompt`` and its control twin in cli/SparkTTS.py.

    clone                  task_tts start_content TEXT end_content VOICE start_semantic_token -> semantic tokens, im_end
    clone with transcript  the same with the transcript before the text, and the recording's semantic tokens behind start_semantic_token
    controllable           task_controllable_tts start_content TEXT end_content LABELS -> acoustic values, 32 global tokens, and as above

VOICE is start_global_token, 32 global tokens, end_global_token. A voice that the model made keeps its task, its labels and its acoustic
values before that, as the model saw them in training.

Upstream's prompt ends before ``start_semantic_token`` where there are no semantic tokens yet, and before ``start_acoustic_token``: the
model writes them. Nothing else can stand there, so here they are part of the prompt (``begin_speech``, ``begin_voice``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bistream.contract.checks import GENDERS, LEVELS
from bistream.families.bicodec_tokens import NUM_GLOBAL, BiCodecTokens

Encode = Callable[[str], list[int]]
MODERATE = "moderate"


@dataclass(frozen=True)
class Labels:
    """Of a voice that the model is to make: words of ``GENDERS`` and ``LEVELS``. speaking_rate: upstream's speed, which is another one on
    the wire."""

    gender: str
    pitch: str = MODERATE
    speaking_rate: str = MODERATE

    @classmethod
    def of(cls, gender: str, pitch: str | None, speaking_rate: str | None) -> Labels:
        """Of a request, which need not say all."""
        return cls(gender, pitch or MODERATE, speaking_rate or MODERATE)

    def ids(self, tokens: BiCodecTokens) -> list[int]:
        """Raises ``ValueError`` for a word that is none of the model's."""
        return [
            tokens.id("start_style_label"),
            tokens.id(f"gender_{GENDERS.index(self.gender)}"),
            tokens.id(f"pitch_label_{LEVELS.index(self.pitch)}"),
            tokens.id(f"speed_label_{LEVELS.index(self.speaking_rate)}"),
            tokens.id("end_style_label"),
        ]


@dataclass(frozen=True)
class SpeakerTokens:
    """What the model knows of a voice. global_tokens: 32 codes.

    labels, pitch, speed: of a voice that the model made; pitch (mel of the mean pitch) and speed (syllables per second) are the acoustic
    values that it gave itself.
    """

    global_tokens: tuple[int, ...]
    labels: Labels | None = None
    pitch: int = 0
    speed: int = 0

    def ids(self, tokens: BiCodecTokens) -> list[int]:
        """Raises ``ValueError`` for another number of tokens or a code that the model does not have."""
        if len(self.global_tokens) != NUM_GLOBAL or not all(0 <= one < tokens.num_global for one in self.global_tokens):
            raise ValueError(f"a voice is {NUM_GLOBAL} global tokens from 0 to {tokens.num_global - 1}")
        first = tokens.ids("bicodec_global").start
        own = [] if self.labels is None else [*self.labels.ids(tokens), *acoustic_ids(tokens, self.pitch, self.speed)]
        return [*own, tokens.id("start_global_token"), *(first + one for one in self.global_tokens), tokens.id("end_global_token")]

    @property
    def numbers(self) -> tuple[int, ...]:
        """As one list: the global tokens, and behind them gender, pitch label, speed label, pitch and speed where there are labels."""
        if self.labels is None:
            return self.global_tokens
        labels = self.labels
        own = (GENDERS.index(labels.gender), LEVELS.index(labels.pitch), LEVELS.index(labels.speaking_rate), self.pitch, self.speed)
        return (*self.global_tokens, *own)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> SpeakerTokens:
        """The speaker of ``numbers``. Raises ``ValueError`` or ``IndexError`` for a list of another form."""
        if len(numbers) == NUM_GLOBAL:
            return cls(tuple(numbers))
        gender, pitch_label, speed_label, pitch, speed = numbers[NUM_GLOBAL:]
        if min(numbers) < 0:
            raise ValueError("a number of a voice is negative")
        return cls(tuple(numbers[:NUM_GLOBAL]), Labels(GENDERS[gender], LEVELS[pitch_label], LEVELS[speed_label]), pitch, speed)

    @property
    def task(self) -> str:
        return "task_tts" if self.labels is None else "task_controllable_tts"


def acoustic_ids(tokens: BiCodecTokens, pitch: int, speed: int) -> list[int]:
    values = (tokens.ids("pitch_value")[pitch], tokens.ids("speed_value")[speed])
    return [tokens.id("start_acoustic_token"), *values, tokens.id("end_acoustic_token")]


def content_ids(tokens: BiCodecTokens, task: str, text_ids: Sequence[int]) -> list[int]:
    """Of every prompt, up to ``end_content``."""
    return [tokens.id(task), tokens.id("start_content"), *text_ids, tokens.id("end_content")]


def clone_prompt(tokens: BiCodecTokens, encode: Encode, text: str, speaker: SpeakerTokens) -> list[int]:
    """Without a transcript, as upstream writes it."""
    return [*content_ids(tokens, speaker.task, encode(text)), *speaker.ids(tokens)]


def begin_speech(tokens: BiCodecTokens, semantic: Sequence[int]) -> list[int]:
    """semantic: codes, of a recording or spoken before."""
    first = tokens.ids("bicodec_semantic").start
    return [tokens.id("start_semantic_token"), *(first + code for code in semantic)]


def continued_prompt(
    tokens: BiCodecTokens,
    encode: Encode,
    transcript: str,
    text: str,
    speaker: SpeakerTokens,
    semantic: Sequence[int],
    separator: str | None = None,
) -> list[int]:
    """With the transcript of ``semantic``. separator: between transcript and text; None: what belongs there (``joined``)."""
    content = joined(transcript, text) if separator is None else transcript + separator + text
    return [*clone_prompt(tokens, encode, content, speaker), *begin_speech(tokens, semantic)]


def labels_prompt(tokens: BiCodecTokens, encode: Encode, text: str, labels: Labels) -> list[int]:
    """Of a voice that the model is to make, as upstream writes it."""
    return [*content_ids(tokens, "task_controllable_tts", encode(text)), *labels.ids(tokens)]


def joined(transcript: str, text: str) -> str:
    """With a blank between them, unless a script without blanks begins the text. Upstream joins them as they are, and ``gospel.Actions``
    becomes other ids than two sentences of a text have."""
    before, after = transcript.rstrip(), text.lstrip()
    return before + after if not before or not after or _is_cjk(after[0]) else f"{before} {after}"


def _is_cjk(character: str) -> bool:
    """Ideographs, kana and their punctuation, full-width forms; Korean writes blanks."""
    return (
        "\u2e80" <= character <= "\ua4cf"
        or "\uf900" <= character <= "\ufaff"
        or "\uff00" <= character <= "\uffef"
        or "\U00020000" <= character <= "\U0003ffff"
    )

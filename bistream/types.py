"""Data types that the stages share. Arrays are numpy; no computation here."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]


class FinishReason(enum.Enum):
    """Why a session's speech tokens ended."""

    EOS = "eos"  # the model emitted a stop id
    LENGTH = "length"  # the length limit (20 speech tokens per text token) was reached
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class GenerationOptions:
    """What a request says to the language model beside text and voice; it passes from the client to the model as one object.

    The fields are those of the table in ``contract/fields.py``. top_k, top_p: ``None`` is the value of the checkpoint's yaml.
    Repetition-aware sampling (``ras_sampling`` there) adds its window and threshold, which are not per-request settings.
    """

    seed: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    instruct_text: str = ""
    text_normalization: str | None = None
    continues: str | None = None
    lexicon: str | None = None
    text_type: str | None = None


@dataclass(frozen=True)
class AudioOptions:
    """What a request says to token2wav beside voice and speed; it passes from the orchestrator to the model as one object.

    seed: that of ``GenerationOptions``. is_marked: the audio gets the watermark.
    """

    seed: int = 0
    is_marked: bool = False


class TokenDemand(NamedTuple):
    """How many speech tokens are useful to a caller now, and how urgent they are.

    slack_s: audio seconds that its listener has, those of the tokens included that the caller has; None: unknown, or nobody listens yet.
    """

    tokens: int
    slack_s: float | None = None


@dataclass(frozen=True)
class SpeakerFeatures:
    """What flow and vocoder know a speaker by.

    embedding: float32 [E], as campplus returns it (not normalised), or the numbers of global tokens. mel: float32 [T, mel bins], the
    24 kHz log-mel of the recording; empty where the family needs none.
    """

    embedding: FloatArray
    mel: FloatArray


@dataclass(frozen=True)
class VoicePrompt:
    """Everything the stages need to speak in one voice.

    prompt_text: transcript of the reference recording; empty for a voice without one.
    speech_tokens: int32 [P], raw codes of the recording. P may be 0.
    speech_feat: float32 [2P, mel bins], the 24 kHz log-mel of the same seconds; empty where the family needs none.
    speaker_embedding: float32 [E], as in ``SpeakerFeatures``.
    speaker_labels: int32, what the language model that made a voice of labels must be told beside its global tokens; else empty.
    """

    prompt_text: str
    speech_tokens: IntArray
    speech_feat: FloatArray
    speaker_embedding: FloatArray
    speaker_labels: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def speaker_tokens(self) -> IntArray:
        """int32, for a language model that is told who speaks (``one_table.prompts.SpeakerTokens.numbers``)."""
        return np.concatenate([self.speaker_embedding.astype(np.int32), self.speaker_labels])


@dataclass(frozen=True)
class SpeechBreak:
    """Silence in place of the audio of ``tokens`` speech tokens, from the one numbered ``place`` on.

    rate_percent: of the speech from there on, over the session's speed.
    """

    place: int
    tokens: int
    silence_ms: int
    rate_percent: int = 100


class SpeechTokens(NamedTuple):  # a dataclass takes five times as long to make; there is one for every token
    """One message of the language model: further speech tokens of a session, or its end, or both.

    text_consumed: characters of the session's own text (prompt text excluded) that are certainly spoken once all tokens
    up to and including this message are.
    is_resting: no further tokens until more text arrives.
    text_fed: characters whose text tokens the model had been given when it made these tokens: it cannot have spoken further ones.
    text_tokens_fed: how many text tokens that were.
    text_attended: the character that the last of the tokens speaks, by the model's own attention; None: not known.
    breaks: places count from the first of ``token_ids``.
    """

    token_ids: tuple[int, ...]
    text_consumed: int = 0
    finish_reason: FinishReason | None = None
    is_resting: bool = False
    text_fed: int = 0
    text_tokens_fed: int = 0
    text_attended: int | None = None
    breaks: tuple[SpeechBreak, ...] = ()

    @property
    def is_final(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True)
class AudioChunk:
    """waveform: float32 [N], mono in [-0.99, 0.99]; chunks of a session are played one after another.

    In characters of the session's text, at the end of the chunk: text_consumed is certainly spoken, text_position estimated.
    """

    waveform: FloatArray
    sequence_number: int
    text_consumed: int
    text_position: int = 0

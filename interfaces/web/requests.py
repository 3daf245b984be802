"""Bodies of HTTP requests, checked by pydantic; unknown fields are ignored, as clients send those of other servers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from bistream.contract.checks import SESSION_ID_PATTERN
from bistream.errors import InvalidInputError
from interfaces.core.earlier import name_of_text
from interfaces.core.values import MAX_INSTRUCTION_CHARS, Values, instructed
from interfaces.protocols.messages import reading_in

Model = TypeVar("Model", bound=BaseModel)
UNINSTRUCTED_MODELS = ("tts-1", "tts-1-hd")
VoiceName = Annotated[str, StringConstraints(max_length=128)]


class FieldError(InvalidInputError):
    """param: the field at fault."""

    def __init__(self, sentence: str, session_id: str | None = None, param: str | None = None) -> None:
        super().__init__(sentence, session_id)
        self.param = param


class Body(BaseModel):
    """``null`` is as if the field were not there."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class ReadBody(Body):
    """With our own fields for how a text is read, and whether its audio gets the watermark."""

    text_normalization: str | None = None
    lexicon: str | dict[str, Any] | None = None
    text_type: str | None = None
    is_marked: bool | None = None

    @property
    def reading(self) -> Values:
        """For the core."""
        return reading_in(self.model_dump())


class VoiceId(Body):
    id: VoiceName


class SpeechRequest(ReadBody):
    """``POST /v1/audio/speech``. instructions have no effect with OpenAI's first two models, as there. sample_rate: None: as usual for the
    format; OpenAI has no such field."""

    model: Annotated[str, StringConstraints(max_length=128)]
    input: Annotated[str, StringConstraints(min_length=1)]
    voice: VoiceName | VoiceId
    instructions: Annotated[str, StringConstraints(max_length=MAX_INSTRUCTION_CHARS)] | None = None
    response_format: str = "mp3"
    sample_rate: int | None = None
    speed: float | None = None
    stream_format: Literal["audio", "sse"] = "audio"
    seed: int | None = None
    temperature: float | None = None
    top_k: Annotated[int, Field(lt=2**31)] | None = None
    top_p: float | None = None

    @property
    def voice_name(self) -> str:
        return self.voice if isinstance(self.voice, str) else self.voice.id

    @property
    def values(self) -> Values:
        """For the core."""
        names = ("seed", "temperature", "top_k", "top_p", "speed")
        given: dict[str, int | float | str | None] = {name: getattr(self, name) for name in names}
        numbers = {name: value for name, value in given.items() if value is not None and (name, value) != ("speed", 1.0)}
        return {**numbers, **self.reading, **instructed(None if self.model in UNINSTRUCTED_MODELS else self.instructions)}


class VoiceSettings(Body):
    speed: float | None = None


class ElevenLabsRequest(ReadBody):
    """``POST /v1/text-to-speech/{voice_id}``."""

    text: Annotated[str, StringConstraints(min_length=1)]
    voice_settings: VoiceSettings | None = None
    seed: int | None = None
    previous_request_ids: list[str] = []
    previous_text: str = ""
    pronunciation_dictionary_locators: list[dict[str, Any]] = []

    @property
    def continues(self) -> str | None:
        """What it says of the audio before, as the core names it; ids of another service are none."""
        known = [name for name in self.previous_request_ids if SESSION_ID_PATTERN.match(name)]
        return known[-1] if known else name_of_text(self.previous_text) if self.previous_text.strip() else None

    @property
    def values(self) -> Values:
        speed = None if self.voice_settings is None else self.voice_settings.speed
        given = {"seed": self.seed, "speed": None if speed == 1.0 else speed, "continues": self.continues}
        return {**self.reading, **{name: value for name, value in given.items() if value is not None}}


class DeepgramRequest(Body):
    """``POST /v1/speak``."""

    text: Annotated[str, StringConstraints(min_length=1)]


class CartesiaRequest(ReadBody):
    """``POST /tts/bytes`` and ``/tts/sse``; what the WebSocket has, too, is read as there."""

    transcript: Annotated[str, StringConstraints(min_length=1)]
    voice: VoiceName | dict[str, Any]
    output_format: dict[str, Any]
    generation_config: dict[str, Any] | None = None
    add_timestamps: bool | None = None
    context_id: VoiceName | None = None
    pronunciation_dict_id: VoiceName | None = None


def parse(kind: type[Model], body: bytes) -> Model:
    """Raises ``FieldError``."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _field_error(error.errors(include_url=False, include_input=False)[0]) from None


def _field_error(problem: Any) -> FieldError:
    """The first problem, without what the client sent."""
    names = [str(part) for part in problem["loc"] if isinstance(part, str | int)]
    if not names:
        return FieldError("The body is not a JSON object, or has half a UTF-16 character; send one in UTF-8, as `application/json`.")
    what = str(problem["msg"]).rstrip(".")
    return FieldError(f"{names[0]}: {what}; correct it.", param=names[0])

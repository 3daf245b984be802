"""Checks a client's requests before anything is computed. Pure; called by the orchestrator with the values of one request."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError
from bistream.limits import check_sampling, check_speaker_id, check_speed, check_text_length, count_characters
from bistream.orchestration.ports import BistreamRequest
from bistream.types import FloatArray, Sampling
from bistream.voice.reference_audio import check_reference_audio


class TextLedger:
    """Counts and checks the text of one session. A refused piece leaves it as it was."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._chars = 0
        self._is_blank = True
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    def accept(self, piece: bytes, is_end: bool) -> None:
        """Take one piece of UTF-8, cut anywhere. Raises ``InvalidInputError``."""
        if self._ended:
            raise InvalidInputError("The text of this session has already ended; start another session for more text.")
        state = self._decoder.getstate()
        try:
            text = self._decode(piece, is_end)
            check_text_length(self._chars + count_characters(piece), self._max_chars)
            self._check_not_blank(text, is_end)
        except InvalidInputError:
            self._decoder.setstate(state)
            raise
        self._chars += count_characters(piece)
        self._is_blank = self._is_blank and not text.strip()
        self._ended = is_end

    def _decode(self, piece: bytes, is_end: bool) -> str:
        try:
            return self._decoder.decode(piece, final=is_end)
        except UnicodeDecodeError:
            where = "ends inside a UTF-8 character" if is_end and self._is_open(piece) else "is not valid UTF-8"
            raise InvalidInputError(f"The text {where}; send valid UTF-8 and end the last piece with a whole character.") from None

    def _is_open(self, piece: bytes) -> bool:
        """Whether more bytes could still make ``piece`` valid (the decoder keeps its state on an error)."""
        try:
            self._decoder.decode(piece, final=False)
        except UnicodeDecodeError:
            return False
        return True

    def _check_not_blank(self, text: str, is_end: bool) -> None:
        if is_end and self._is_blank and not text.strip():
            raise InvalidInputError("The text is empty although is_end is true; send target_text, or is_end false if text follows.")


@dataclass(frozen=True)
class SessionStart:
    """A checked first request.

    session_id: the client's; ``None`` for a session of a single request. reference_wav: float32 [N] at 16 kHz, checked and cut to
    its true length, with its transcript; without it, speaker_id names a registered voice. offline: the flow's whole-utterance path.
    """

    session_id: str | None
    text: bytes
    is_end: bool
    reference_wav: FloatArray | None
    reference_text: str
    speaker_id: str | None
    sampling: Sampling
    speed: float
    offline: bool


def check_start(request: BistreamRequest, config: RuntimeConfig) -> SessionStart:
    """Raise ``InvalidInputError`` for anything wrong with the request except its text (``TextLedger``) and an unknown speaker."""
    if request.session_id is None and not request.is_end:
        raise InvalidInputError("session_id is missing; send one with every piece, or the whole text with is_end true.")
    check_sampling(request.sampling)
    speed = _check_speed(request)
    speaker_id = _check_speaker(request, config)
    reference_wav, reference_text = (None, "") if speaker_id is not None else _check_reference(request, config)
    return SessionStart(
        session_id=request.session_id,
        text=request.target_text or b"",
        is_end=request.is_end,
        reference_wav=reference_wav,
        reference_text=reference_text,
        speaker_id=speaker_id,
        sampling=request.sampling,
        speed=speed,
        offline=request.offline or speed != 1.0,
    )


def check_append(request: BistreamRequest) -> None:
    """Raise ``InvalidInputError`` for an append with inputs that only a first request may have."""
    if request.reference_wav is not None or request.reference_text is not None or request.speaker_id is not None:
        raise InvalidInputError("The voice of a session is set by its first request; send later pieces without it.")
    if request.speed is not None:
        raise InvalidInputError("speed needs the whole text in the first request; leave it out when the text comes in pieces.")


def _check_speaker(request: BistreamRequest, config: RuntimeConfig) -> str | None:
    """The registered voice to use; ``None`` if the request has a recording."""
    if request.speaker_id is not None:
        if request.reference_wav is not None:
            raise InvalidInputError("The request has both reference_wav and speaker_id; send one of them.")
        check_speaker_id(request.speaker_id)
        return request.speaker_id
    if request.reference_wav is not None:
        return None
    if not config.default_speaker_id:
        raise InvalidInputError("The voice is missing; send reference_wav with reference_text, or a speaker_id.")
    return config.default_speaker_id


def _check_reference(request: BistreamRequest, config: RuntimeConfig) -> tuple[FloatArray, str]:
    assert request.reference_wav is not None, "called with a recording only"
    try:
        text = (request.reference_text or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInputError("reference_text is not valid UTF-8; send it as UTF-8.") from None
    if not text.strip():
        raise InvalidInputError("reference_text is missing; send the transcript of reference_wav.")
    return check_reference_audio(request.reference_wav, request.reference_wav_len, config), text


def _check_speed(request: BistreamRequest) -> float:
    if request.speed is None:
        return 1.0
    check_speed(request.speed)
    if not request.is_end:
        raise InvalidInputError("speed needs the whole text in the first request; leave it out, or send is_end true with all the text.")
    return request.speed

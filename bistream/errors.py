"""Every error a caller can act on.

    BistreamError
    ├── ConfigError            CONFIG_ERROR          a setting is unknown or unusable; the model does not load
    ├── CheckpointError        CHECKPOINT_ERROR      a file of the model directory is missing, damaged or does not fit
    ├── InvalidInputError      INVALID_INPUT         the request is wrong; sending it again will not help
    ├── UnknownSessionError    UNKNOWN_SESSION       no live session has this id (never started, finished, cancelled)
    ├── SessionExistsError     SESSION_EXISTS        a live session has this id already
    ├── UnknownSpeakerError    UNKNOWN_SPEAKER       no voice is registered under this speaker_id
    ├── UnknownVoiceError      UNKNOWN_VOICE         the server does not have the voice of this reference_hash; send the recording
    ├── BusyError              BUSY                  a limit is reached; try again later        (retryable)
    ├── SessionTimeoutError    SESSION_TIMEOUT       the session received nothing for too long and was closed
    ├── CancelledError         CANCELLED             the session was cancelled by its client
    ├── EngineError            ENGINE_ERROR          computation failed; other sessions may be affected (retryable)
    ├── ShuttingDownError      SHUTTING_DOWN         the server accepts no new sessions         (retryable)
    │   of the gate alone:
    ├── UnauthenticatedError   UNAUTHENTICATED       no valid API key came with the call
    ├── NotServedError         NOT_SERVED            there is no such model or call for clients
    └── WrongCallError         WRONG_CALL            the model streams and was called without a stream, or the reverse

On the wire an error reads ``CODE: sentence [session ID; retry_after_s N]`` (``contract/refusals.py``): one sentence that says what to do,
no stack trace, no path of the server. The sentence is for people; what programs need is a field.
"""

from __future__ import annotations

from typing import Self


class BistreamError(Exception):
    """Base of all errors with a wire code. ``str(error)`` is the sentence for the user.

    retry_after_s: when it is worth trying again; None: not known. ``BusyError`` has it where the server can estimate it.
    """

    code = "INTERNAL"
    retryable = False

    def __init__(self, sentence: str, session_id: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.session_id = session_id
        self.retry_after_s = retry_after_s

    def renewed(self, session_id: str | None) -> Self:
        """An unraised copy for this session: the traceback of a raised error keeps the locals of its stack frames alive."""
        copy = type(self)(self.sentence, session_id)
        copy.retry_after_s = self.retry_after_s
        return copy


class ConfigError(BistreamError):
    code = "CONFIG_ERROR"


class CheckpointError(BistreamError):
    code = "CHECKPOINT_ERROR"


class InvalidInputError(BistreamError):
    code = "INVALID_INPUT"


class UnknownSessionError(BistreamError):
    code = "UNKNOWN_SESSION"


class SessionExistsError(BistreamError):
    code = "SESSION_EXISTS"


class UnknownSpeakerError(BistreamError):
    code = "UNKNOWN_SPEAKER"


class UnknownVoiceError(BistreamError):
    code = "UNKNOWN_VOICE"


class BusyError(BistreamError):
    code = "BUSY"
    retryable = True


class SessionTimeoutError(BistreamError):
    code = "SESSION_TIMEOUT"


class CancelledError(BistreamError):
    code = "CANCELLED"


class EngineError(BistreamError):
    code = "ENGINE_ERROR"
    retryable = True


class ShuttingDownError(BistreamError):
    code = "SHUTTING_DOWN"
    retryable = True


class UnauthenticatedError(BistreamError):
    code = "UNAUTHENTICATED"


class NotServedError(BistreamError):
    code = "NOT_SERVED"


class WrongCallError(BistreamError):
    code = "WRONG_CALL"


GATE_ERRORS = (UnauthenticatedError, NotServedError, WrongCallError)
ERRORS_BY_CODE: dict[str, type[BistreamError]] = {  # of the server behind the gate
    error.code: error
    for error in (
        ConfigError,
        CheckpointError,
        InvalidInputError,
        UnknownSessionError,
        SessionExistsError,
        UnknownSpeakerError,
        UnknownVoiceError,
        BusyError,
        SessionTimeoutError,
        CancelledError,
        EngineError,
        ShuttingDownError,
    )
}

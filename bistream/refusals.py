"""The wording of refusals that more than one model gives: one fault, one sentence. Raised by the orchestrator and the models' services."""

from __future__ import annotations

from bistream.errors import (
    BistreamError,
    BusyError,
    CancelledError,
    InvalidInputError,
    SessionExistsError,
    SessionTimeoutError,
    ShuttingDownError,
    UnknownSessionError,
    UnknownVoiceError,
)


def unknown_session(session_id: str | None = None) -> UnknownSessionError:
    return UnknownSessionError("No live session has this id; it was never started, or ended long ago; start a new one.", session_id)


def session_exists(session_id: str | None = None) -> SessionExistsError:
    return SessionExistsError("A live session has this id; choose another, or append with is_start false.", session_id)


def unknown_voice(session_id: str | None = None) -> UnknownVoiceError:
    return UnknownVoiceError(
        "The server does not have the voice of this reference_hash, or no longer; send reference_wav with reference_text.", session_id
    )


def hash_differs(session_id: str | None = None) -> InvalidInputError:
    return InvalidInputError("reference_hash does not fit reference_wav and reference_text; correct it, or leave it out.", session_id)


def sessions_taken(max_sessions: int, session_id: str | None = None, retry_after_s: float | None = None) -> BusyError:
    when = "later" if retry_after_s is None else after(retry_after_s)
    return BusyError(f"All {max_sessions} sessions are taken; try again {when}.", session_id)


def server_full(retry_after_s: float, session_id: str | None = None) -> BusyError:
    return BusyError(f"The server speaks with as many listeners as it can; try again {after(retry_after_s)}.", session_id)


def flow_state_taken(retry_after_s: float, session_id: str | None = None) -> BusyError:
    return BusyError(f"The flow state is reserved for other sessions; try again {after(retry_after_s)}.", session_id)


def after(seconds: float) -> str:
    """The form that ``BusyError.retry_after_s`` reads."""
    return f"in {seconds:.1f} s"


def accepts_no_sessions(session_id: str | None = None) -> ShuttingDownError:
    return ShuttingDownError("The server is shutting down and takes no new sessions; connect to another one.", session_id)


def shut_down(session_id: str | None = None) -> ShuttingDownError:
    return ShuttingDownError("The server is shutting down; start the session on another one.", session_id)


def cancelled_by_client(session_id: str | None = None) -> CancelledError:
    return CancelledError("The session was cancelled by its client.", session_id)


def silent_too_long(limit_s: float, session_id: str | None = None) -> SessionTimeoutError:
    return SessionTimeoutError(f"No text that can be spoken came for {limit_s:g} s; start the session when there is some.", session_id)


def text_has_ended(session_id: str | None = None) -> InvalidInputError:
    return InvalidInputError("The text of this session has already ended; start another session for more text.", session_id)


def text_is_empty(session_id: str | None = None) -> InvalidInputError:
    return InvalidInputError("The text is empty although is_end is true; send words, or is_end false if text follows.", session_id)


def not_utf8(is_open: bool, session_id: str | None = None) -> InvalidInputError:
    """is_open: the text ends where more bytes could still make it valid."""
    where = "ends inside a UTF-8 character" if is_open else "is not valid UTF-8"
    return InvalidInputError(f"The text {where}; send valid UTF-8 and end the last piece with a whole character.", session_id)


def came_late(end: BistreamError | None, session_id: str | None) -> BistreamError:
    """What a request is told that comes after the end of its session. end: the error that the session ended with; ``None``: it finished.

    The code of an early end is repeated: a client that sends pieces without waiting sees one code, whichever answer it reads first.
    """
    if end is None:
        return UnknownSessionError("This session has finished; start another one.", session_id)
    if isinstance(end, CancelledError):
        return CancelledError("This session was cancelled; start another one.", session_id)
    return end.renewed(session_id)

"""Errors on the wire, and the wording of refusals that more than one model gives: one fault, one sentence."""

from __future__ import annotations

import re

from bistream.errors import (
    ERRORS_BY_CODE,
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

_ERROR = re.compile(
    r"(?P<code>[A-Z_]+): (?P<sentence>.*?)"
    r"(?: \[(?:session (?P<session>[^\];]*)(?:; |(?=\])))?(?:retry_after_s (?P<retry>\d+(?:\.\d+)?))?\])?\Z",
    re.DOTALL,
)


def format_error(error: BistreamError) -> str:
    """``CODE: sentence [session ID; retry_after_s N]``; each part in brackets only where the error has it."""
    parts = [f"session {error.session_id}"] if error.session_id else []
    if error.retry_after_s is not None:
        parts.append(f"retry_after_s {error.retry_after_s:.1f}")
    return f"{error.code}: {error.sentence}" + (f" [{'; '.join(parts)}]" if parts else "")


def parse_error(message: str) -> BistreamError:
    """The error that ``format_error`` wrote. Anything else (a message of Triton itself) becomes a ``BistreamError``."""
    match = _ERROR.search(message)
    if match is None or match["code"] not in ERRORS_BY_CODE:
        return BistreamError(message)
    retry_after_s = None if match["retry"] is None else float(match["retry"])
    return ERRORS_BY_CODE[match["code"]](match["sentence"], match["session"], retry_after_s)


def unknown_session(session_id: str | None = None) -> UnknownSessionError:
    return UnknownSessionError("No live session has this id; it was never started, or ended long ago; start a new one.", session_id)


def session_exists(session_id: str | None = None) -> SessionExistsError:
    return SessionExistsError("A live session has this id; choose another, or append with is_start false.", session_id)


def unknown_voice() -> UnknownVoiceError:
    return UnknownVoiceError(
        "The server does not have the voice of this reference_hash, or no longer; send reference_wav with reference_text."
    )


def takes_no_labels() -> InvalidInputError:
    return InvalidInputError("This checkpoint makes no voices of labels; leave out gender, pitch and speaking_rate.")


def has_no_speed() -> InvalidInputError:
    return InvalidInputError("This model has no speed; leave it out, or set it to 1.")


def marks_nothing() -> InvalidInputError:
    return InvalidInputError("The request or its API key asks for the watermark; have the server started with watermark=on_request.")


def hash_differs() -> InvalidInputError:
    return InvalidInputError("reference_hash does not fit reference_wav and reference_text; correct it, or leave it out.")


def sessions_taken(max_sessions: int, session_id: str | None = None, retry_after_s: float | None = None) -> BusyError:
    return _busy(f"All {max_sessions} sessions are taken", retry_after_s, session_id)


def server_full(retry_after_s: float) -> BusyError:
    return _busy("The server is at capacity", retry_after_s)


def flow_state_taken(retry_after_s: float) -> BusyError:
    return _busy("The flow state is reserved for other sessions", retry_after_s)


def _busy(why: str, retry_after_s: float | None, session_id: str | None = None) -> BusyError:
    """To the tenth of a second, as on the wire."""
    seconds = None if retry_after_s is None else round(retry_after_s, 1)
    when = "later" if seconds is None else f"in {seconds:.1f} s"
    return BusyError(f"{why}; try again {when}.", session_id, seconds)


def accepts_no_sessions(session_id: str | None = None) -> ShuttingDownError:
    return ShuttingDownError("The server is shutting down and takes no new sessions; connect to another one.", session_id)


def shut_down(session_id: str | None = None) -> ShuttingDownError:
    return ShuttingDownError("The server is shutting down; start the session on another one.", session_id)


def client_has_gone() -> CancelledError:
    return CancelledError("The client's stream is gone; the session was cancelled.")


def cancelled_by_client(session_id: str | None = None) -> CancelledError:
    return CancelledError("The session was cancelled by its client.", session_id)


def silent_too_long(limit_s: float, session_id: str | None = None) -> SessionTimeoutError:
    return SessionTimeoutError(f"No text that can be spoken came for {limit_s:g} s; start the session when there is some.", session_id)


def text_has_ended(session_id: str | None = None) -> InvalidInputError:
    return InvalidInputError("The text of this session has already ended; start another session for more text.", session_id)


def text_is_empty() -> InvalidInputError:
    return InvalidInputError("The text is empty although is_end is true; send words, or is_end false if text follows.")


def not_utf8(is_open: bool) -> InvalidInputError:
    """is_open: the text ends where more bytes could still make it valid."""
    where = "ends inside a UTF-8 character" if is_open else "is not valid UTF-8"
    return InvalidInputError(f"The text {where}; send valid UTF-8 and end the last piece with a whole character.")


def came_late(end: BistreamError | None, session_id: str | None) -> BistreamError:
    """What a request is told that comes after the end of its session. end: the error that the session ended with; ``None``: it finished.

    The code of an early end is repeated: a client that sends pieces without waiting sees one code, whichever answer it reads first.
    """
    if end is None:
        return UnknownSessionError("This session has finished; start another one.", session_id)
    if isinstance(end, CancelledError):
        return CancelledError("This session was cancelled; start another one.", session_id)
    return end.renewed(session_id)

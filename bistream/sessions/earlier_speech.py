"""Which session a start continues: one of the same caller, in the same voice, that has spoken all of its text within the last minute."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from bistream.contract.earlier_sessions import EarlierSessions
from bistream.sessions.ports import SessionKey
from bistream.sessions.session import CallerSession
from bistream.types import VoicePrompt


class EarlierSpeech:
    """Used in the event loop alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._spoken = EarlierSessions[tuple[str, bytes]](clock)  # its id at the language model, and the ``_digest`` of its voice

    def add(self, session: CallerSession, voice: VoicePrompt) -> None:
        """It has just spoken all of its text."""
        if session.key is not None:
            self._spoken.add(session.key, (session.port_id, _digest(voice)))

    def named_by(self, session: CallerSession, voice: VoicePrompt) -> str | None:
        """The id at the language model of the session that this one names; None: it names none. Its own, by which nothing is known, where
        there is none of this caller (same secret) in this voice."""
        named = session.start.options.continues
        if named is None:
            return None
        found = self._spoken.find(SessionKey(named, session.key.secret if session.key is not None else None))
        return found[0] if found is not None and found[1] == _digest(voice) else session.port_id


def _digest(voice: VoicePrompt) -> bytes:
    parts = (voice.prompt_text.encode(), voice.speech_tokens.tobytes(), voice.speaker_embedding.tobytes(), voice.speaker_labels.tobytes())
    return hashlib.sha256(b"".join(parts)).digest()

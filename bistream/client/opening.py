"""How a session is opened and goes on, for the threaded and the asyncio client alike: one place says what can be asked for."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from bistream.client.exchange import SessionExchange
from bistream.client.known_voices import KnownVoices
from bistream.contract.codec import to_bytes
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.voices import reference_hash

Session = TypeVar("Session")
# Inputs that the client fills in itself, or that its methods have names of their own for.
_OWN = "target_text session_id is_start is_end is_cancel reference_wav_len reference_hash source_wav source_wav_len is_voice_list".split()
START_ARGUMENTS = frozenset(COSYVOICE2_BISTREAM.by_name).difference(_OWN)


class SessionStarts(ABC, Generic[Session]):
    """known_voices: recordings that the server has; None: they are sent with every session."""

    known_voices: KnownVoices | None

    @abstractmethod
    def _open(self, exchange: SessionExchange, start: dict[str, Any]) -> Session:
        """The client's own session, with the inputs of its start by their names in the wire contract."""

    def start(self, *, text: str | bytes = b"", is_end: bool = False, session_id: str | None = None, **inputs: Any) -> Session:
        """Open a session. text, is_end: with ``is_end`` this is the whole text and the server may use its one-shot layout.

        inputs: ``START_ARGUMENTS``, inputs of the wire contract by name: the voice, ``reference_wav`` (float32 [N], 16 kHz mono) with
        ``reference_text``, a ``speaker_id`` or labels (``gender``), and how it is to speak. None: not asked for. Raises ``TypeError`` for
        another name.
        """
        return self._start(session_id, {"target_text": to_bytes(text), "is_end": is_end}, inputs)

    def convert(self, source_wav: NDArray[np.float32], *, session_id: str | None = None, **inputs: Any) -> Session:
        """Open a session that speaks the words of a recording in another voice (voice conversion); the audio streams.

        source_wav: float32 [N], 16 kHz mono. inputs: as those of ``start``: a voice, whose transcript is not needed, ``seed``, ``speed``.
        """
        source = {"source_wav": source_wav, "source_wav_len": len(source_wav)}
        return self._start(session_id, {"target_text": b"", "is_end": True, **source}, inputs)

    def _start(self, session_id: str | None, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> Session:
        start = {**values, **said(inputs), "is_start": True}
        reference_wav, voice_hash = start.get("reference_wav"), None
        if reference_wav is not None:
            start["reference_wav_len"] = len(reference_wav)
            if self.known_voices is not None:  # its hash may replace it; without a transcript that of an empty one
                voice_hash = reference_hash(reference_wav, start.get("reference_text", ""))
        return self._open(SessionExchange(session_id or uuid.uuid4().hex, self.known_voices, voice_hash, self._secret), start)

    @cached_property
    def _secret(self) -> str:
        """By which a server without API keys knows the sessions of this client."""
        return uuid.uuid4().hex


def later_piece(piece: str | bytes, is_end: bool, speed: float | None) -> dict[str, Any]:
    """The inputs of a later request with text. speed: of what is spoken from here on; None: as before."""
    return {"target_text": to_bytes(piece), "is_start": False, "is_end": is_end, "speed": speed}


def said(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those that say anything. Raises ``TypeError`` for a name that is no argument of a start."""
    for name in inputs:
        if name not in START_ARGUMENTS:
            raise TypeError(f"A start has no argument {name!r}; it takes {', '.join(sorted(START_ARGUMENTS))}.")
    fields = COSYVOICE2_BISTREAM.by_name
    return {name: value for name, value in inputs.items() if fields[name].says(value)}

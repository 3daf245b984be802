"""How a session is opened, for the threaded and the asyncio client alike: one place says what can be asked for."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from bistream.client.exchange import SessionExchange
from bistream.client.known_voices import KnownVoices
from bistream.client.translation import to_bytes
from bistream.limits import is_instruction
from bistream.reference_hash import reference_hash

Session = TypeVar("Session")


class SessionStarts(ABC, Generic[Session]):
    """known_voices: recordings that the server has; None: they are sent with every session."""

    known_voices: KnownVoices | None

    @abstractmethod
    def _open(self, exchange: SessionExchange, start: dict[str, Any]) -> Session:
        """The client's own session, with the inputs of its start by their names in the wire contract."""

    def start(
        self,
        *,
        reference_wav: NDArray[np.float32] | None = None,
        reference_text: str | None = None,
        speaker_id: str | None = None,
        text: str | bytes = b"",
        is_end: bool = False,
        session_id: str | None = None,
        instruct_text: str | None = None,
        is_cross_lingual: bool = False,
        **options: int | float | str,
    ) -> Session:
        """Open a session. A voice is a recording (float32 [N], 16 kHz mono) with its transcript, or the id of a registered one.

        Without the transcript, or with is_cross_lingual, the text may be in another language than the recording.
        instruct_text: how to speak.
        text, is_end: with ``is_end`` this is the whole text and the server may use its one-shot layout. options: ``seed``,
        ``temperature``, ``top_k``, ``top_p``, ``text_normalization`` and, with ``is_end``, ``speed``.
        """
        values: dict[str, Any] = {
            "target_text": to_bytes(text),
            "is_end": is_end,
            "instruct_text": instruct_text if is_instruction(instruct_text or "") else None,
            **options,
        }
        if is_cross_lingual:
            values["is_cross_lingual"] = True
        return self._start(session_id, reference_wav, reference_text, speaker_id, values)

    def convert(
        self,
        source_wav: NDArray[np.float32],
        *,
        reference_wav: NDArray[np.float32] | None = None,
        reference_text: str | None = None,
        speaker_id: str | None = None,
        session_id: str | None = None,
        **options: int | float,
    ) -> Session:
        """Open a session that speaks the words of a recording in another voice (voice conversion); the audio streams.

        source_wav: float32 [N], 16 kHz mono. The voice is a recording or the id of a registered one; a transcript is not needed.
        options: ``seed``, ``speed``.
        """
        source = {"source_wav": source_wav, "source_wav_len": len(source_wav)}
        values = {"target_text": b"", "is_end": True, **source, **options}
        return self._start(session_id, reference_wav, reference_text, speaker_id, values)

    def _start(
        self,
        session_id: str | None,
        reference_wav: NDArray[np.float32] | None,
        reference_text: str | None,
        speaker_id: str | None,
        values: Mapping[str, Any],
    ) -> Session:
        """values: the inputs beside the voice; None: left out. Older servers lack some, so what is not asked for is not sent."""
        start: dict[str, Any] = {"reference_text": reference_text, "speaker_id": speaker_id, **values, "is_start": True}
        voice_hash = None
        if reference_wav is not None:
            start.update(reference_wav=reference_wav, reference_wav_len=len(reference_wav))
            if self.known_voices is not None:  # its hash may replace it; without a transcript that of an empty one
                voice_hash = reference_hash(reference_wav, reference_text or "")
        return self._open(SessionExchange(session_id or uuid.uuid4().hex, self.known_voices, voice_hash), start)

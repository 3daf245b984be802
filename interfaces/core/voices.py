"""Voices by name: recordings with their transcripts, and what the servers have: presets of the checkpoint, and voices registered there.

An upload belongs to its API key; without keys, to the bearer of the secret in the answer to the upload.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bistream.contract.voices import ListedVoice
from bistream.errors import InvalidInputError, UnknownSpeakerError
from interfaces.core.caller import Caller, digest_of
from interfaces.core.errors import ForbiddenError, unknown_voice
from interfaces.core.shares import QuotaError, share_of, whose
from interfaces.core.upload_store import UploadStore
from interfaces.core.voice import UPLOAD, Voice
from interfaces.core.voice_names import is_reserved, is_vendors, plain_name
from interfaces.settings import InterfaceLimits

MAX_NAME_CHARS = 64
MAX_TRANSCRIPT_CHARS = 1000


class VoiceStore:
    """Look-ups never show one owner's voices to another."""

    def __init__(
        self,
        fixed: tuple[Voice, ...] = (),
        folder: Path | None = None,
        default: str | None = None,
        aliases: tuple[tuple[str, str], ...] = (),
        accepts_any: bool = False,
        limits: InterfaceLimits | None = None,
    ) -> None:
        """fixed: of the command line. accepts_any: unknown names speak with the default voice."""
        self._fixed = {voice.id: voice for voice in fixed}
        self._listed: Callable[[], Sequence[ListedVoice]] = tuple
        self._default = default
        self._aliases = dict(aliases)
        self._accepts_any = accepts_any
        self._limits = limits or InterfaceLimits()
        self._uploads = UploadStore(folder)
        self._changing = threading.Lock()

    @property
    def aliases(self) -> list[str]:
        """Other names, as the command line gives them, of voices that everybody may use."""
        voices = [*self._fixed.values(), *self._of_servers()]
        return [name for name, voice in self._aliases.items() if _named(voice, voices) is not None]

    def follow(self, listed: Callable[[], Sequence[ListedVoice]]) -> None:
        """listed: the voices that the servers have at the moment."""
        self._listed = listed

    def all_of(self, owner: str | None) -> list[Voice]:
        """The default first; then those of the command line, of the servers, and uploads. By name the first one is found: a recording of
        the command line hides a voice of the servers, an upload hides nothing."""
        taken = {*self._fixed, *(voice.name for voice in self._fixed.values())}
        others = [voice for voice in self._of_servers() if voice.name not in taken]
        voices = [*self._fixed.values(), *others, *(voice for voice in self._uploads.all() if voice.owner == owner)]
        default = self._default_in(voices)
        return voices if default is None else [default, *(voice for voice in voices if voice is not default)]

    def default_of(self, owner: str | None) -> Voice | None:
        """The voice of requests that name none."""
        return self._default_in(self.all_of(owner))

    def _default_in(self, voices: list[Voice]) -> Voice | None:
        """What somebody uploaded is nobody else's default, unless the command line says so."""
        if self._default:
            return _named(self._default, voices)
        return next((voice for voice in voices if voice.kind != UPLOAD or voice.owner is not None), None)

    def _of_servers(self) -> list[Voice]:
        return [Voice(voice.name, voice.name, speaker_id=voice.name, kind=voice.kind) for voice in self._listed()]

    def find(self, name: str, owner: str | None) -> Voice:
        """By id, name or alias; the empty name and those of the vendors' voices are the default voice. Raises ``UnknownSpeakerError``."""
        voices = self.all_of(owner)
        wanted = self._aliases.get(name, name)
        is_theirs = is_vendors(wanted)  # and so no upload's, whenever that was made
        if (found := _named(wanted, [voice for voice in voices if not is_theirs or voice.kind != UPLOAD])) is not None:
            return found
        if not name or is_vendors(name) or self._accepts_any:
            if (default := self._default_in(voices)) is not None:
                return default
            raise UnknownSpeakerError("This gateway has no voice of its own; upload one with POST /v1/audio/voices and ask for it by name.")
        raise unknown_voice(name)

    def check_room(self, caller: Caller, size: int = 0, replaced: Voice | None = None) -> None:
        """Whether the caller may add a recording of ``size`` bytes. Raises ``QuotaError``."""
        uploads, limits = [voice for voice in self._uploads.all() if voice is not replaced], self._limits
        for holder in (*caller.holders, None):  # None: all of them
            held = [voice for voice in uploads if holder is None or voice.is_held_by(holder)]
            share = 1.0 if holder is None else limits.share
            count, most = share_of(limits.max_voices, share), share_of(limits.max_voices_bytes, share)
            if len(held) >= count or sum(map(_size_of, held)) + size > most:
                whole = "The gateway has" if holder is None else f"Your {whose(holder)} has"
                raise QuotaError(f"{whole} as many uploaded voices as there may be ({count}, or {most} bytes); delete one.")

    def add(self, name: str, samples: NDArray[np.float32], transcript: str | None, caller: Caller) -> Voice:
        """samples: float32 [N], 16 kHz. transcript: None where it is not known: the voice speaks then as for a text in another language.

        With the caller's secret of an upload of this name, that one is replaced. Raises ``InvalidInputError`` and ``QuotaError``.
        """
        name, transcript = name.strip(), None if transcript is None else transcript.strip()
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise InvalidInputError(f"The name of a voice has 1 to {MAX_NAME_CHARS} printable characters; choose another.")
        if transcript is not None and not 1 <= len(transcript) <= MAX_TRANSCRIPT_CHARS:
            raise InvalidInputError(
                f"A voice needs what is said in the recording, in 1 to {MAX_TRANSCRIPT_CHARS} characters; send it as `transcript`."
            )
        with self._changing:
            replaced = self._check_name(name, caller)
            self.check_room(caller, samples.nbytes, replaced)
            secret = secrets.token_urlsafe(24) if caller.key is None else None
            voice = Voice(
                f"voice_{uuid.uuid4().hex}",
                name,
                samples,
                transcript,
                None,
                caller.key,
                int(time.time()),
                UPLOAD,
                "" if secret is None else digest_of(secret),
                caller.address,
            )
            self._uploads.put(voice)
            if replaced is not None:
                self._uploads.remove(replaced.id)
        return replace(voice, secret=secret)

    def _check_name(self, name: str, caller: Caller) -> Voice | None:
        """The upload that one of this name replaces. Raises ``InvalidInputError`` for a name that is not free."""
        plain = plain_name(name)
        ours = {*self._aliases, *self._aliases.values(), self._default or ""}
        ours |= {text for voice in (*self._fixed.values(), *self._of_servers()) for text in (voice.id, voice.name)}
        if is_reserved(name) or plain in {plain_name(one) for one in ours if one}:
            raise InvalidInputError(f"{name!r} is the name of a built-in voice; choose another.")
        if caller.key is not None:
            return None
        others = [voice for voice in self._uploads.all() if voice.owner is None and plain_name(voice.name) == plain]
        replaced = next((voice for voice in others if voice.is_of(caller)), None)
        if others and replaced is None:
            raise InvalidInputError(f"There is a voice {name!r} of somebody else; choose another name, or send its secret to replace it.")
        return replaced

    def delete(self, voice_id: str, caller: Caller) -> None:
        """Raises ``UnknownSpeakerError`` where the caller sees no such upload, ``ForbiddenError`` where it is not the caller's."""
        with self._changing:
            found = next((voice for voice in self._uploads.all() if voice.id == voice_id and voice.owner == caller.key), None)
            if found is None:
                raise unknown_voice(voice_id)
            if not found.is_of(caller):
                raise ForbiddenError(
                    "This voice belongs to who uploaded it; send the secret of the answer to the upload as `x-voice-secret`."
                )
            self._uploads.remove(voice_id)


def _named(name: str, voices: list[Voice]) -> Voice | None:
    by_id = next((voice for voice in voices if voice.id == name), None)
    return by_id or next((voice for voice in voices if voice.name == name), None)


def _size_of(voice: Voice) -> int:
    return 0 if voice.samples is None else voice.samples.nbytes

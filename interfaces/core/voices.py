"""Voices by name: recordings with their transcripts, and what the servers have: presets of the checkpoint, and voices registered there.

A folder may be shared by several processes: a voice is one file, written whole or not at all, and found by the next look-up. Without a
folder uploads are kept in memory.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bistream.errors import InvalidInputError, UnknownSpeakerError
from bistream.voice_list import ListedVoice
from interfaces.core.errors import unknown_voice

OPENAI_VOICES = ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse")
# Voices of the vendors by the form of their names: ElevenLabs', Cartesia's, Deepgram's and DashScope's.
_VENDORS_VOICE = re.compile(
    r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[A-Za-z0-9]{20}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(aura|flux)(-[a-z0-9]+)+|long[a-z]+(_v\d)?"
)
MAX_NAME_CHARS = 64
MAX_TRANSCRIPT_CHARS = 1000
RECORDING, UPLOAD = "recording", "upload"  # kinds beside those of ``ListedVoice``
_ID = re.compile(r"voice_[0-9a-f]{32}\Z")


@dataclass(frozen=True)
class Voice:
    """samples: float32 [N], 16 kHz mono, with what is said in them; or speaker_id, a voice of the servers. owner: the key that may delete
    it and alone may use it; None: everybody's, and not deleted."""

    id: str
    name: str
    samples: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    transcript: str | None = field(default=None, repr=False)
    speaker_id: str | None = None
    owner: str | None = None
    created_at: int = 0
    kind: str = RECORDING


class VoiceStore:
    """Look-ups never show one owner's voices to another."""

    def __init__(
        self,
        fixed: tuple[Voice, ...] = (),
        folder: Path | None = None,
        default: str | None = None,
        aliases: tuple[tuple[str, str], ...] = (),
        accepts_any: bool = False,
        max_voices: int = 1000,
    ) -> None:
        """fixed: of the command line. accepts_any: unknown names speak with the default voice."""
        self._fixed = {voice.id: voice for voice in fixed}
        self._listed: Callable[[], Sequence[ListedVoice]] = tuple
        self._folder = folder
        self._default = default
        self._aliases = dict(aliases)
        self._accepts_any = accepts_any
        self._max_voices = max_voices
        self._uploads: dict[str, Voice] = {}

    @property
    def aliases(self) -> list[str]:
        """Other names, as the command line gives them, of voices that everybody may use."""
        voices = [*self._fixed.values(), *self._of_servers()]
        return [name for name, voice in self._aliases.items() if _named(voice, voices) is not None]

    def follow(self, listed: Callable[[], Sequence[ListedVoice]]) -> None:
        """listed: the voices that the servers have at the moment."""
        self._listed = listed

    def all_of(self, owner: str | None) -> list[Voice]:
        """The default first; then those of the command line, of the servers, and uploads. A recording hides a voice of the servers that has
        its name."""
        uploads = [voice for voice in self._uploaded() if voice.owner == owner]
        taken = {*self._fixed, *(voice.name for voice in self._fixed.values()), *(voice.name for voice in uploads)}
        others = [voice for voice in self._of_servers() if voice.name not in taken]
        voices = [*self._fixed.values(), *others, *sorted(uploads, key=lambda voice: (voice.created_at, voice.id))]
        default = _named(self._default, voices) if self._default else None
        return voices if default is None else [default, *(voice for voice in voices if voice is not default)]

    def default_of(self, owner: str | None) -> Voice | None:
        """The voice of requests that name none."""
        return self._default_in(self.all_of(owner))

    def _default_in(self, voices: list[Voice]) -> Voice | None:
        """voices: of ``all_of``."""
        if self._default:
            return _named(self._default, voices)
        return voices[0] if voices else None

    def _of_servers(self) -> list[Voice]:
        return [Voice(voice.name, voice.name, speaker_id=voice.name, kind=voice.kind) for voice in self._listed()]

    def find(self, name: str, owner: str | None) -> Voice:
        """By id, name or alias; the empty name and those of the vendors' voices are the default voice. Raises ``UnknownSpeakerError``."""
        voices = self.all_of(owner)
        if (found := _named(self._aliases.get(name, name), voices)) is not None:
            return found
        if not name or name in OPENAI_VOICES or _VENDORS_VOICE.fullmatch(name) or self._accepts_any:
            if (default := self._default_in(voices)) is not None:
                return default
            raise UnknownSpeakerError("This gateway has no voice yet; upload one with POST /v1/audio/voices.")
        raise unknown_voice(name)

    def add(self, name: str, samples: NDArray[np.float32], transcript: str | None, owner: str | None) -> Voice:
        """samples: float32 [N], 16 kHz. transcript: None where it is not known: the voice speaks then as for a text in another language.

        Raises ``InvalidInputError``, also where there are too many: trying again does not help.
        """
        name, transcript = name.strip(), None if transcript is None else transcript.strip()
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise InvalidInputError(f"The name of a voice has 1 to {MAX_NAME_CHARS} printable characters; choose another.")
        if transcript is not None and not 1 <= len(transcript) <= MAX_TRANSCRIPT_CHARS:
            raise InvalidInputError(
                f"A voice needs what is said in the recording, in 1 to {MAX_TRANSCRIPT_CHARS} characters; send it as `transcript`."
            )
        if len(self._uploaded()) >= self._max_voices:
            raise InvalidInputError(f"There are {self._max_voices} voices already; delete one.")
        voice = Voice(f"voice_{uuid.uuid4().hex}", name, samples, transcript, None, owner, int(time.time()), UPLOAD)
        if self._folder is None:
            self._uploads[voice.id] = voice
        else:
            _write(self._folder, voice)
        return voice

    def delete(self, voice_id: str, owner: str | None) -> None:
        """Raises ``UnknownSpeakerError`` for one that is not this owner's upload."""
        found = next((voice for voice in self._uploaded() if voice.id == voice_id and voice.owner == owner), None)
        if found is None:
            raise unknown_voice(voice_id)
        self._uploads.pop(voice_id, None)
        if self._folder is not None:
            (self._folder / f"{voice_id}.npz").unlink(missing_ok=True)

    def _uploaded(self) -> list[Voice]:
        """Another process may have written or deleted files of the folder since."""
        if self._folder is None:
            return list(self._uploads.values())
        names = {path.stem for path in self._folder.glob("voice_*.npz") if _ID.match(path.stem)} if self._folder.is_dir() else set()
        for gone in set(self._uploads) - names:
            self._uploads.pop(gone, None)  # another thread may have looked as well
        for name in names - set(self._uploads):
            if (voice := _read(self._folder / f"{name}.npz")) is not None:
                self._uploads[name] = voice
        return list(self._uploads.values())


def _named(name: str, voices: list[Voice]) -> Voice | None:
    by_id = next((voice for voice in voices if voice.id == name), None)
    return by_id or next((voice for voice in voices if voice.name == name), None)


def _write(folder: Path, voice: Voice) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        assert voice.samples is not None, "an upload"
        np.savez(
            file,
            samples=voice.samples,
            texts=np.array([voice.name, voice.transcript or "", "" if voice.owner is None else f"key:{voice.owner}"]),
            created_at=np.array(voice.created_at),
        )
    os.replace(file.name, folder / f"{voice.id}.npz")


def _read(path: Path) -> Voice | None:
    """None: deleted meanwhile, or not a file of ours."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            name, transcript, owner = (str(text) for text in stored["texts"])
            samples = stored["samples"].astype(np.float32).reshape(-1)
            return Voice(
                path.stem, name, samples, transcript or None, None, owner.removeprefix("key:") or None, int(stored["created_at"]), UPLOAD
            )
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None

"""Registered voices: files in one directory, read by the orchestrator, written by ``bistream voices``.

A voice ``ID`` is two files: ``ID.json`` (transcript, and the name of the other file) and ``ID-<digest>.safetensors`` (its
arrays). The digest is of the content, and the JSON file is replaced atomically, so a running server reads the old or the new
voice, never a mixture. The JSON file also says which speech tokenizer and speaker encoder made the voice: with others it is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from bistream.contract.checks import SPEAKER_ID_PATTERN, check_speaker_id
from bistream.errors import BistreamError, CheckpointError, InvalidInputError, UnknownSpeakerError
from bistream.processes.whole_file import write_whole
from bistream.store.fingerprint import Fingerprint, from_json
from bistream.types import VoicePrompt
from bistream.voice.build import NO_LABELS, make_voice_prompt

FORMAT = 1
_TENSORS_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}-[0-9a-f]{32}\.safetensors\Z")
_ARRAYS = ("speech_tokens", "speech_feat", "speaker_embedding")
_LABELS = "speaker_labels"  # an array of voices that have them


@dataclass(frozen=True)
class _Entry:
    """Content of one ``ID.json``."""

    prompt_text: str
    tensors_name: str
    made_with: Fingerprint | None


class VoiceRegistry:
    """Voices of one directory. Nothing is kept in memory: a voice registered now is found by the next request."""

    def __init__(self, directory: str | Path, made_with: Fingerprint | None = None) -> None:
        """directory: created by the first ``save``; an empty string for none, so that every speaker is unknown.

        made_with: ``voice_fingerprint`` of the model directory. It is saved with a voice, and a voice saved with another one is refused;
        None, on either side, is not compared.
        """
        self._directory = Path(directory) if directory else None
        self._made_with = made_with

    def speaker_ids(self) -> list[str]:
        """Registered ids, sorted."""
        if self._directory is None or not self._directory.is_dir():
            return []
        return sorted(path.stem for path in self._directory.glob("*.json") if SPEAKER_ID_PATTERN.match(path.stem))

    def content_key(self, speaker_id: str) -> str:
        """Cache key that changes when the voice is registered again. Raises as ``load`` does."""
        return f"speaker:{self._entry(speaker_id).tensors_name}"

    def load(self, speaker_id: str) -> VoicePrompt:
        """Raises ``UnknownSpeakerError``, and ``CheckpointError`` when the files are damaged or the voice belongs to another model."""
        import safetensors.numpy  # noqa: PLC0415  (a package of the server; those who list and remove voices do without)

        entry, data = self._content(speaker_id)
        try:
            arrays = {_LABELS: NO_LABELS, **safetensors.numpy.load(data)}
            return make_voice_prompt(entry.prompt_text, *(arrays[name] for name in (*_ARRAYS, _LABELS)))
        except (BistreamError, KeyError, safetensors.SafetensorError) as error:
            raise _damaged(speaker_id) from error

    def recorded(self, speaker_id: str) -> tuple[str, int]:
        """Transcript and number of speech tokens. Raises as ``load`` does."""
        entry, data = self._content(speaker_id)
        try:  # the format of safetensors: 8 bytes with the length of a JSON header that has every array's shape
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            return entry.prompt_text, int(header[_ARRAYS[0]]["shape"][0])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise _damaged(speaker_id) from error

    def save(self, speaker_id: str, voice: VoicePrompt) -> None:
        """Register or replace a voice. Raises ``InvalidInputError`` for an invalid id or without a directory."""
        check_speaker_id(speaker_id)
        if self._directory is None:
            raise InvalidInputError("No directory for voices is configured; set voices_dir.")
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            previous = self._read(speaker_id).tensors_name
        except (UnknownSpeakerError, CheckpointError):  # new, or damaged and now replaced
            previous = None
        import safetensors.numpy  # noqa: PLC0415

        names = (*_ARRAYS, _LABELS) if voice.speaker_labels.size else _ARRAYS
        data = safetensors.numpy.save({name: getattr(voice, name) for name in names})
        tensors_name = f"{speaker_id}-{_digest(data, voice.prompt_text)}.safetensors"
        header: dict[str, object] = {"format": FORMAT, "prompt_text": voice.prompt_text, "tensors": tensors_name}
        if self._made_with is not None:
            header["made_with"] = dict(self._made_with.facts)
        written = json.dumps(header, ensure_ascii=False, indent=2).encode("utf-8") + b"\n"
        write_whole(self._directory / tensors_name, data, is_lasting=True)
        write_whole(self._directory / f"{speaker_id}.json", written, is_lasting=True)
        if previous is not None and previous != tensors_name:
            (self._directory / previous).unlink(missing_ok=True)

    def remove(self, speaker_id: str) -> None:
        """Forget a voice, a damaged one too. Raises ``UnknownSpeakerError``."""
        try:
            tensors_name = self._read(speaker_id).tensors_name
        except CheckpointError:
            tensors_name = None
        assert self._directory is not None, "an entry was found in it"
        (self._directory / f"{speaker_id}.json").unlink(missing_ok=True)
        if tensors_name is not None:
            (self._directory / tensors_name).unlink(missing_ok=True)

    def _content(self, speaker_id: str) -> tuple[_Entry, bytes]:
        """The bytes of the arrays, which are those that were saved."""
        entry = self._entry(speaker_id)
        assert self._directory is not None, "an entry was found in it"
        try:
            data = (self._directory / entry.tensors_name).read_bytes()
        except FileNotFoundError:  # replaced by a newer registration since the JSON file was read?
            newer = self._entry(speaker_id)
            if newer.tensors_name == entry.tensors_name:
                raise _damaged(speaker_id) from None
            return self._content(speaker_id)
        if _digest(data, entry.prompt_text) != entry.tensors_name.removesuffix(".safetensors")[-32:]:
            raise _damaged(speaker_id)
        return entry, data

    def _entry(self, speaker_id: str) -> _Entry:
        """Of a voice that this model can speak."""
        entry = self._read(speaker_id)
        if entry.made_with is not None and self._made_with is not None:
            entry.made_with.require(self._made_with, f"The registered voice {speaker_id!r}", "register it again with this model")
        return entry

    def _read(self, speaker_id: str) -> _Entry:
        unknown = UnknownSpeakerError(f"No voice is registered as {speaker_id[:64]!r}; register it or use another speaker_id.")
        if self._directory is None or not SPEAKER_ID_PATTERN.match(speaker_id):  # an id is never a path
            raise unknown
        try:
            header = json.loads((self._directory / f"{speaker_id}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise unknown from None
        except (OSError, ValueError) as error:
            raise _damaged(speaker_id) from error
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise _damaged(speaker_id)
        text, name, facts = header.get("prompt_text"), header.get("tensors"), header.get("made_with")
        if not isinstance(text, str) or not isinstance(name, str) or not _TENSORS_NAME.match(name):
            raise _damaged(speaker_id)
        try:
            return _Entry(text, name, None if facts is None else from_json(facts))
        except ValueError as error:
            raise _damaged(speaker_id) from error


def _damaged(speaker_id: str) -> CheckpointError:
    return CheckpointError(f"The files of the registered voice {speaker_id!r} are damaged; register it again.")


def _digest(tensors: bytes, prompt_text: str) -> str:
    return hashlib.blake2b(tensors + b"\0text\0" + prompt_text.encode("utf-8"), digest_size=16).hexdigest()

"""Bounded cache of voices by content: voices that are used again stay, however many are used only once.

Two tables in order of last use: voices heard *once*, and voices heard *again*, which take at most ``AGAIN_SHARE`` of the room. What
leaves the second table gets another chance in the first; what leaves the first is forgotten. So one client with ever new recordings
displaces what was heard once, and never the voices that other callers come back to.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from bistream.types import VoicePrompt

MAX_BYTES = 64 * 2**20  # a recording of 30 s is a voice of 0.5 MB
AGAIN_SHARE = 0.75


class VoiceCache:
    """At most ``size`` voices of together ``max_bytes``. Thread-safe."""

    def __init__(self, size: int, max_bytes: int = MAX_BYTES) -> None:
        self._size = size
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._once = _Table()
        self._again = _Table()

    def get(self, key: str) -> VoicePrompt | None:
        with self._lock:
            voice = self._once.remove(key) or self._again.remove(key)
            if voice is None:
                return None
            self._again.add(key, voice)
            while self._again.exceeds(int(AGAIN_SHARE * self._size), int(AGAIN_SHARE * self._max_bytes)):
                self._once.add(*self._again.remove_oldest())
            return voice

    def put(self, key: str, voice: VoicePrompt) -> None:
        """Keep a voice. No effect if the key is known, or the voice alone is too large."""
        with self._lock:
            if voice_bytes(voice) > self._max_bytes or key in self._once.voices or key in self._again.voices:
                return
            self._once.add(key, voice)
            while len(self._once) + len(self._again) > self._size or self._once.bytes + self._again.bytes > self._max_bytes:
                (self._once if self._once.voices else self._again).remove_oldest()

    def get_or_build(self, key: str, build: Callable[[], VoicePrompt]) -> VoicePrompt:
        """For a ``build`` that takes little time: it runs on the caller's thread, and twice if two callers meet. Raises what it raises."""
        voice = self.get(key)
        if voice is None:
            voice = build()
            self.put(key, voice)
        return voice

    def __len__(self) -> int:
        """Voices in the cache."""
        with self._lock:
            return len(self._once) + len(self._again)

    @property
    def bytes(self) -> int:
        """Their size."""
        with self._lock:
            return self._once.bytes + self._again.bytes


def voice_bytes(voice: VoicePrompt) -> int:
    """Size of a voice's arrays and transcript."""
    arrays = (voice.speech_tokens, voice.speech_feat, voice.speaker_embedding, voice.speaker_labels)
    return sum(array.nbytes for array in arrays) + len(voice.prompt_text.encode("utf-8", errors="surrogatepass"))


class _Table:
    """Voices in order of last use, and their size."""

    def __init__(self) -> None:
        self.voices: OrderedDict[str, VoicePrompt] = OrderedDict()  # oldest first
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.voices)

    def exceeds(self, size: int, max_bytes: int) -> bool:
        return len(self) > size or self.bytes > max_bytes

    def add(self, key: str, voice: VoicePrompt) -> None:
        self.voices[key] = voice
        self.bytes += voice_bytes(voice)

    def remove(self, key: str) -> VoicePrompt | None:
        voice = self.voices.pop(key, None)
        self.bytes -= voice_bytes(voice) if voice is not None else 0
        return voice

    def remove_oldest(self) -> tuple[str, VoicePrompt]:
        key = next(iter(self.voices))
        voice = self.remove(key)
        assert voice is not None
        return key, voice

"""Bounded cache of voices by content: a key and a build function go in, the one shared ``VoicePrompt`` comes out.

Used by the orchestrator from one thread per session: when two sessions request the same voice at once, it is built once and
the second waits for the first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from bistream.types import VoicePrompt


class VoiceCache:
    """LRU cache of at most ``size`` voices. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._voices: OrderedDict[str, VoicePrompt] = OrderedDict()
        self._building: dict[str, Future[VoicePrompt]] = {}

    def get_or_build(self, key: str, build: Callable[[], VoicePrompt]) -> VoicePrompt:
        """The voice of ``key``. ``build`` is called, without holding the lock, by at most one thread per key at a time.

        An exception of ``build`` reaches every waiting caller and is not cached: the next call builds again.
        """
        with self._lock:
            if key in self._voices:
                self._voices.move_to_end(key)
                return self._voices[key]
            future = self._building.get(key)
            is_builder = future is None
            if future is None:
                future = self._building[key] = Future()
        if is_builder:
            self._build(key, build, future)
        return future.result()

    def _build(self, key: str, build: Callable[[], VoicePrompt], future: Future[VoicePrompt]) -> None:
        try:
            voice = build()
        except BaseException as error:
            with self._lock:
                del self._building[key]
            future.set_exception(error)
            return
        with self._lock:
            del self._building[key]
            self._voices[key] = voice
            while len(self._voices) > self._size:
                self._voices.popitem(last=False)
        future.set_result(voice)

    def __len__(self) -> int:
        """Voices in the cache."""
        with self._lock:
            return len(self._voices)

"""Answers requests for the voices of a front model, in a thread of its own: files are read for each, and sessions must not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from bistream.contract.voices import ListedVoice, format_voices
from bistream.transport.sender import Answerer, public_error


class VoiceLists:
    def __init__(self, listed: Callable[[], Iterable[ListedVoice]]) -> None:
        """listed: blocks, and raises ``BistreamError``."""
        self._listed = listed
        self._thread = ThreadPoolExecutor(1, "bistream-voice-list")

    def answer(self, sender: Answerer) -> None:
        """Returns at once."""
        self._thread.submit(self._answer, sender)

    def _answer(self, sender: Answerer) -> None:
        try:
            data = format_voices(self._listed())
        except Exception as error:
            sender.finish(public_error(error))
        else:
            sender.send({"voices": data}, is_last=True)

    def close(self) -> None:
        self._thread.shutdown()

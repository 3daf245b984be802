"""A trained voice's speech tokens, offline and from pieces of text."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bistream.errors import BistreamError
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.types import FinishReason, GenerationOptions, SpeechTokens
from bistream.voice.spk2info import read_spk2info
from tests.formats import SPEECH_TOKENS_PER_SECOND

T = TypeVar("T")
VOICE = "nora"
PLACES = 32  # sessions at the same time
_PATIENCE_S = 600.0  # for one message, on a machine that is busy with other things


@dataclass(frozen=True)
class Spoken:
    tokens: tuple[int, ...]
    finish_reason: FinishReason

    @property
    def seconds(self) -> float:
        return len(self.tokens) / SPEECH_TOKENS_PER_SECOND


class VoiceUnderTest:
    def __init__(self, service: SpeechTokenService, directory: Path) -> None:
        self._service = service
        self.prompt = read_spk2info(directory / "spk2info.pt", lambda ids: "")[VOICE]

    def speak(self, pieces: Sequence[str], seed: int = 0, is_whole: bool = False, pauses: bool = False) -> Spoken:
        """The tokens of one session. is_whole: the text in one request, in the one-shot layout. pauses: each (long) piece comes when all
        that can be spoken of those before has been. Raises ``BistreamError``."""
        messages: queue.SimpleQueue[SpeechTokens | BistreamError] = queue.SimpleQueue()
        session, text = uuid.uuid4().hex, "".join(pieces).encode()
        prompt = self.prompt
        start = LanguageModelStart(
            session, text if is_whole else b"", is_whole, prompt.prompt_text, prompt.speech_tokens, GenerationOptions(seed=seed)
        )
        self._service.start(start, messages.put)
        tokens = list[int]()

        def take() -> SpeechTokens:
            message = messages.get(timeout=_PATIENCE_S)
            if isinstance(message, BistreamError):
                raise message
            tokens.extend(message.token_ids)
            return message

        if not is_whole:
            for piece in pieces:
                self._service.append(session, piece.encode(), False)
                while pauses and not take().is_resting:
                    pass
            self._service.append(session, b"", True)
        while (reason := take().finish_reason) is None:
            pass
        return Spoken(tuple(tokens), reason)


def together(speak: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
    """As ``map``, of sessions that speak at the same time, ``PLACES`` at most: company changes none (tests/unit/test_same_sound.py)."""
    with ThreadPoolExecutor(PLACES) as pool:
        return list(pool.map(speak, *arguments))


def words_with_blanks(text: str) -> list[str]:
    """As a caller sends them: each word with the blank before it."""
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)]

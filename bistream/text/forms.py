"""Text of a certain form, such as a tag, found in a text that comes in pieces: a stage that holds it until it is whole or is none. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod

from bistream.text.characters import Emit


class FormReader(ABC):
    """One text. ``BEGINNINGS``: the characters that such a form may begin with."""

    BEGINNINGS: tuple[str, ...]

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._held = ""  # what may be the beginning of such a form
        self._counts: list[int] = []  # of its characters

    @abstractmethod
    def _is_open(self, held: str) -> bool:
        """Whether more characters decide."""

    @abstractmethod
    def _meaning(self, held: str) -> str | None:
        """What stands in its place. None: it is text, or begins with some."""

    def feed(self, character: str, count: int) -> None:
        if not self._held and character not in self.BEGINNINGS:
            self._emit(character, count)
            return
        if not character:
            self._counts[-1] += count
            return
        self._held += character
        self._counts.append(count)
        while self._held and not self._is_open(self._held):
            if (meaning := self._meaning(self._held)) is None:
                self._release()
            else:
                self._replace(meaning)

    def finish(self, is_end: bool) -> None:
        while self._held:
            self._release()

    def _replace(self, characters: str) -> None:
        count, self._held, self._counts = sum(self._counts), "", []
        for character in characters[:-1]:
            self._emit(character, 0)
        self._emit(characters[-1:], count)

    def _release(self) -> None:
        """The first held character, and those after it that cannot begin anything."""
        length = next((index for index, one in enumerate(self._held) if index and one in self.BEGINNINGS), len(self._held))
        released, counts = self._held[:length], self._counts[:length]
        self._held, self._counts = self._held[length:], self._counts[length:]
        for character, count in zip(released, counts, strict=True):
            self._emit(character, count)

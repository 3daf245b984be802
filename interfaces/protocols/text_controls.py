"""Controls in the text of vendors' clients, which comes in pieces cut anywhere: text, breaks and speeds out. Pure."""

from __future__ import annotations

from bistream.text.forms import FormReader
from interfaces.core.text import Item


class ControlReader(FormReader):
    """One text. Its controls are the forms of the ``FormReader``."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self._characters: list[str] = []
        self._items: list[Item] = []

    def push(self, text: str) -> list[Item]:
        """What these characters decide. Raises ``InvalidInputError`` for a wrong control; the reader is of no use then."""
        for character in text:
            self.feed(character, 1)
        return self._take()

    def read(self, text: str) -> list[Item]:
        """The text is whole with it. Raises as ``push`` does."""
        return [*self.push(text), *self.flush()]

    def flush(self) -> list[Item]:
        """The rest, which is text."""
        self.finish(is_end=False)
        return self._take()

    def _say(self, character: str, count: int) -> None:
        self._characters.append(character)

    def _add(self, item: Item) -> None:
        if text := "".join(self._characters):
            self._items.append(text)
        self._characters.clear()
        if item:
            self._items.append(item)

    def _take(self) -> list[Item]:
        self._add("")
        taken, self._items = self._items, []
        return taken

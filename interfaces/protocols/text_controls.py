"""Controls in the text of vendors' clients, which comes in pieces cut anywhere: text, breaks and speeds out. Pure."""

from __future__ import annotations

from bistream.contract.checks import SSML
from bistream.text.forms import FormReader
from interfaces.core.text import Item
from interfaces.core.values import Values


class ControlReader(FormReader):
    """One text. Its controls are the forms of the ``FormReader``; in SSML there are none."""

    def __init__(self, values: Values | None = None) -> None:
        """values: of the utterance."""
        super().__init__(self._say)
        if (values or {}).get("text_type") == SSML:
            self.BEGINNINGS = ()
        self._characters: list[str] = []
        self._items: list[Item] = []

    def push(self, text: str, is_whole: bool = False) -> list[Item]:
        """What these characters decide. is_whole: what may be the beginning of a control is text.

        Raises ``InvalidInputError`` for a wrong control; the reader is of no use then.
        """
        for character in text:
            self.feed(character, 1)
        if is_whole:
            self.finish(is_end=False)
        self._add("")
        taken, self._items = self._items, []
        return taken

    def _say(self, character: str, count: int) -> None:
        self._characters.append(character)

    def _add(self, item: Item) -> None:
        if text := "".join(self._characters):
            self._items.append(text)
        self._characters.clear()
        if item:
            self._items.append(item)

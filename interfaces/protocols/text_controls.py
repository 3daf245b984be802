"""Controls in the text of vendors' clients, which comes in pieces cut anywhere: text, breaks and speeds out. Pure."""

from __future__ import annotations

from contextlib import suppress

from bistream.contract.checks import SSML
from bistream.errors import InvalidInputError
from bistream.text.forms import FormReader
from bistream.text.markup import MarkupReader
from bistream.text.tags import TAG, is_open_tag
from interfaces.core.text import Break, Item
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


class BreakTags(ControlReader):
    """``<break time="1s"/>`` in a text that is no XML: brackets and ampersands are text, and other tags are left to the servers."""

    BEGINNINGS = ("<",)
    NAMES: tuple[str, ...] = ("break",)

    def __init__(self, values: Values | None = None) -> None:
        super().__init__(values)
        self._breaks = MarkupReader()

    def _is_open(self, held: str) -> bool:
        return is_open_tag(held)

    def _meaning(self, held: str) -> str | None:
        tag = TAG.fullmatch(held)
        if tag is None or tag["name"] not in self.NAMES:
            return None
        self._take(tag["name"], tag["attributes"] or "", is_end=tag["end"] is not None)
        return ""

    def _take(self, name: str, attributes: str, is_end: bool) -> None:
        """A tag of ``NAMES``. Raises ``InvalidInputError``."""
        if name == "break" and not is_end:
            for one in self._breaks.push(f"<break{attributes}/>", is_end=False):
                self._add(Break(one.silence_ms or 0))


class LenientBreakTags(BreakTags):
    """A wrong break has no effect, and none behind it: a text that a language model writes is spoken all the same."""

    def _take(self, name: str, attributes: str, is_end: bool) -> None:
        with suppress(InvalidInputError):
            super()._take(name, attributes, is_end)
            return
        self.NAMES = ()

"""Markdown as it is spoken: a stage of the text preparation, which a request asks for.

Spoken are the words: of headings, items, cells, links (not their addresses), images (their description) and code in a line. Headings, items
and rows end with a pause, cells with a short one. Not spoken are fenced code blocks, the marks of blocks and of code, numbers of footnotes
and definitions of links. Stars and underscores of emphasis, rulers and bullets fall in ``blanks.py`` and entities in ``tags.py``, with or
without Markdown.

Held are the beginning of a line while it may mark a block, a bracket until the character behind it, and the address of a link, at most
``MAX_ADDRESS_CHARS``. Held text that turns out to be none of these is spoken.
"""

from __future__ import annotations

import re

from bistream.text.characters import GAP, PAUSE, Emit

MAX_ADDRESS_CHARS = 512
MAX_LABEL_CHARS = 40
_ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
# At the beginning of a line, without the blanks and the quotation signs before it: what is complete, and what may become it.
_BLOCK = re.compile(
    r"(?P<heading>#{1,6}[ \n])|(?P<item>[-*+\x1c\x1d][ \x1c](?=[^ \x1c]))|(?P<box>\[[ xX]\] )|(?P<row>\|)|(?P<fence>`{3,8}|~{3,8})(?=[^`~])"
    rf"|(?P<note>\[\^[^\]\n]{{1,{MAX_LABEL_CHARS}}}\]: )|(?P<definition>\[[^\]\n]{{1,{MAX_LABEL_CHARS}}}\]:[ ]?(?=https?://|/|#|<))"
)
_BLOCK_BEGINNING = re.compile(
    r"#{1,6}|[-*+\x1c\x1d](?:[ \x1c]+)?|`{1,8}|~{1,8}"
    rf"|\[[^\]\n]{{0,{MAX_LABEL_CHARS}}}(?:\](?::(?: ?(?:h(?:t(?:t(?:ps?:?/?)?)?)?)?)?)?)?"
)
_WEB = "(http"  # how an address begins behind an index (a[0]), which is the number of a source then
_BEFORE_CITATION = frozenset(".,;:!?)")  # without a blank; the last is also the end of an address
_NUMBER = re.compile(r"\d{1,4}[.)] ")


class MarkdownReader:
    """One text."""

    def __init__(self, emit: Emit) -> None:
        self._give = emit
        self._covered = 0  # characters that were dropped since
        self._beginning: str | None = ""  # of the line, while it may mark a block; None: in the line
        self._counts: list[int] = []  # of the characters of ``_beginning`` or ``_held``
        self._held = ""  # in a line
        self._last = ""
        self._has_block = False  # the line is a heading, an item or a row
        self._in_row = self._in_code = self._skips_line = False
        self._brackets: list[bool] = []  # open ones; whether each is of a link
        self._fence: str | None = None  # that closes the code block
        self._fence_line = ""
        self._number = ""  # at the beginning of the line

    def feed(self, character: str, count: int) -> None:
        if not character:
            self._covered += count
        elif self._fence is not None:
            self._feed_code(character, count)
        elif self._beginning is not None:
            self._begin_line(character, count)
        else:
            self._feed_inline(character, count)

    def finish(self, is_end: bool) -> None:
        if self._beginning:
            self._enter_line()
        self._beginning = None if self._last else ""
        if self._in_row and self._held[:1] == "|":
            self._drop()
        self._release()
        if self._covered:
            self._give("", self._covered)
            self._covered = 0

    def _emit(self, character: str, count: int = 0) -> None:
        self._give(character, count + self._covered)
        self._covered = 0
        self._last = character

    # -- the beginning of a line -------------------------------------------------------------------------------------

    def _begin_line(self, character: str, count: int) -> None:
        assert self._beginning is not None
        if not self._beginning and character in (" ", ">"):
            self._covered += count
            return
        self._beginning += character
        self._counts.append(count)
        if (block := _BLOCK.match(self._beginning)) is not None:
            self._begin_block(block)
        elif _BLOCK_BEGINNING.fullmatch(self._beginning) is None:
            self._enter_line()

    def _begin_block(self, block: re.Match[str]) -> None:
        assert self._beginning is not None
        kind, length = block.lastgroup, block.end()
        rest, counts = self._beginning[length:], self._counts[length:]
        self._covered += sum(self._counts[:length])
        self._beginning, self._counts = None, []
        if kind in ("heading", "item", "row"):
            self._has_block = True
            self._emit("\n")
        self._in_row, self._skips_line = kind == "row", kind in ("definition", "fence")
        if kind == "fence":
            self._fence = block["fence"]
            self._fence_line = "-"  # the rest of this line does not close it
        elif kind in ("item", "box"):
            self._beginning = ""  # items are nested, and boxes of tasks stand in them
        elif kind == "row" or block[0].endswith("\n"):
            rest, counts = block[0][-1] + rest, [0, *counts]
        for character, count in zip(rest, counts, strict=True):
            self.feed(character, count)

    def _enter_line(self) -> None:
        held, counts = self._beginning or "", self._counts
        self._beginning, self._counts, self._number = None, [], ""
        for character, count in zip(held, counts, strict=True):
            self._feed_inline(character, count)

    # -- in a line ---------------------------------------------------------------------------------------------------

    def _feed_inline(self, character: str, count: int) -> None:
        if self._held:
            self._feed_held(character, count)
        elif character == "\n":
            self._end_line(count)
        elif self._skips_line:
            self._covered += count
        elif character == "`":
            self._covered += count
            self._in_code = not self._in_code
        elif self._in_code:
            self._emit(character, count)
        elif character in "\\![" or (character == "]" and self._brackets):
            self._hold(character, count)
        elif self._in_row and character == "|":
            self._hold(character, count)
        else:
            self._take_plain(character, count)

    def _take_plain(self, character: str, count: int) -> None:
        if self._number is not None and len(self._number) < 6:
            self._number += character
            self._has_block |= _NUMBER.fullmatch(self._number) is not None
        self._emit(character, count)

    def _hold(self, character: str, count: int) -> None:
        self._held = character
        self._counts = [count]

    def _feed_held(self, character: str, count: int) -> None:
        first = self._held[0]
        self._held += character
        self._counts.append(count)
        if first == "\\":
            self._end_escape(character)
        elif first == "!":
            self._end_exclamation(character)
        elif first == "[":
            self._follow_opening(character)
        elif first == "|":
            self._follow_cell(character)
        else:
            self._follow_closing(character)

    def _end_escape(self, character: str) -> None:
        if character in _ESCAPABLE:
            counts = self._drop()
            self._covered -= counts[-1]
            self._emit(character, counts[-1])
        elif character == "\n":
            self._drop(but_last=True)
        else:
            self._release()

    def _end_exclamation(self, character: str) -> None:
        if character == "[":
            self._drop(but_last=True)
        else:
            self._release()

    def _follow_opening(self, character: str) -> None:
        """A bracket: of a footnote's number, which is dropped; of an index (``a[0]``), which stays; or of a link or an aside."""
        if self._held.startswith("[^"):
            if character == "]" and len(self._held) > 3:
                self._drop()
            elif character == "\n" or len(self._held) > MAX_LABEL_CHARS:
                self._release()
            return
        is_link = not self._last.isalnum()
        self._brackets.append(is_link)
        if is_link and self._last and self._last in _BEFORE_CITATION:
            self._emit(GAP)
        if is_link:
            self._drop(but_last=True)
        else:
            self._release()

    def _follow_closing(self, character: str) -> None:
        """Behind a link's text is its address, or the label of one; behind an aside there is neither."""
        opening = self._held[1]
        if opening not in "([" or not (self._brackets[-1] or _WEB.startswith(self._held[1 : 1 + len(_WEB)])):
            is_link = self._brackets.pop()
            if is_link:
                self._drop(but_last=True)
            else:
                self._release()
            return
        most = MAX_ADDRESS_CHARS if opening == "(" else MAX_LABEL_CHARS
        is_closed = character == (")" if opening == "(" else "]") and (opening == "[" or self._held.count("(") == self._held.count(")"))
        if is_closed:
            is_link = self._brackets.pop()
            self._drop()
            if is_link:
                self._last = ")"
            else:
                self._emit("]")
        elif (character in "\n[]" and len(self._held) > 2) or len(self._held) > most:  # an address has no brackets
            self._brackets.pop()
            self._release()

    def _follow_cell(self, character: str) -> None:
        """The ruler under a table's head is dropped; a cell begins with a pause."""
        if character in "|\n":
            self._drop(but_last=True)
        elif character not in " -:":
            held, counts = self._held[1:], self._counts[1:]
            self._covered += self._counts[0]
            self._held, self._counts = "", []
            self._emit(PAUSE)
            for one, count in zip(held, counts, strict=True):
                self._feed_inline(one, count)

    def _drop(self, but_last: bool = False) -> list[int]:
        """but_last: the last character is read on."""
        last, counts = self._held[-1], self._counts
        self._held, self._counts = "", []
        self._covered += sum(counts[:-1] if but_last else counts)
        if but_last:
            self._feed_inline(last, counts[-1])
        return counts

    def _release(self) -> None:
        """The first held character is none that says anything about the others."""
        held, counts = self._held, self._counts
        self._held, self._counts = "", []
        if held:
            self._emit(held[0], counts[0])
            for character, count in zip(held[1:], counts[1:], strict=True):
                self._feed_inline(character, count)

    def _end_line(self, count: int) -> None:
        self._emit("\n", count)
        if self._has_block:
            self._emit("\n")
        self._beginning, self._number = "", ""
        self._has_block = self._in_row = self._in_code = self._skips_line = False
        self._brackets.clear()

    # -- in a code block ---------------------------------------------------------------------------------------------

    def _feed_code(self, character: str, count: int) -> None:
        assert self._fence is not None
        self._covered += count
        if character != "\n":
            self._fence_line += character
            return
        line, self._fence_line = self._fence_line.strip(), ""
        if line.startswith(self._fence) and not line.strip(self._fence[0]):
            self._fence, self._skips_line = None, False
            self._emit(GAP)
            self._has_block = True
            self._end_line(0)

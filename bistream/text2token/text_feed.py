"""One session's text on its way into its layout: bytes to text tokens and breaks, and what of them the layout gets."""

from __future__ import annotations

from collections.abc import Iterable

from bistream.contract.checks import count_characters
from bistream.contract.refusals import text_is_empty
from bistream.text.text_in import TextBreak, TextIn, TextToken
from bistream.text2token.parted_layout import Break, PartedLayout

ReadText = list[TextToken | TextBreak]


class TextPlaces:
    """Characters of a session's text by its text tokens: where a number of them ends, and which one is being spoken.

    attended: the character that is spoken, by the model's attention; never goes back; None: not known."""

    def __init__(self, skipped_chars: int = 0) -> None:
        """skipped_chars: of the session's text, before its first token."""
        self._skipped = skipped_chars
        self._ends: list[int] = []
        self.attended: int | None = None

    def push(self, end_chars: Iterable[int]) -> None:
        """Of further text tokens; without the skipped characters."""
        self._ends += [self._skipped + end for end in end_chars]

    def until(self, tokens: int) -> int:
        """Characters that the first ``tokens`` text tokens cover completely."""
        return self._ends[tokens - 1] if tokens else 0

    def attend(self, token: int) -> None:
        """The text token of this number is being spoken, hence the character in its middle; below 0: one of the prompt."""
        if token >= 0:
            begin = self._ends[token - 1] if token else self._skipped
            self.attended = max(self.attended or 0, -(-(begin + self._ends[token]) // 2))


class TextFeed:
    """num_chars: of the session's text so far. skipped_chars: of it, before the text that comes here."""

    def __init__(self, text_in: TextIn, skipped_chars: int) -> None:
        self.num_chars = skipped_chars
        self.places = TextPlaces(skipped_chars)
        self._text_in = text_in
        self._soundless: list[TextToken] = []  # the first tokens of the text, or behind a break, until one has a sound

    def read(self, text: bytes, is_end: bool) -> ReadText:
        """Raises ``InvalidInputError`` for text that is not UTF-8, wrong SSML, and a text that ends empty."""
        found = self._text_in.read(text, is_end)
        self.num_chars += count_characters(text)
        if is_end and not self.num_chars:
            raise text_is_empty()
        return found

    def feed(self, layout: PartedLayout, found: ReadText, is_end: bool) -> bool:
        """Whether that may be news for the layout. It never gets marks alone, neither as a text nor between two breaks."""
        has_break = False
        for one in found:
            if isinstance(one, TextBreak):
                self._push(layout, one.has_speech)
                self._soundless, has_break = [], True
                layout.push_break(Break(one.silence_ms, one.rate_percent))
            else:
                self._soundless.append(one)
        self._push(layout, self._text_in.has_speech)
        if is_end:
            layout.end_text()
        return self._text_in.has_speech or has_break or is_end

    def _push(self, layout: PartedLayout, has_speech: bool) -> None:
        if has_speech:
            tokens, self._soundless = self._soundless, []
            self.places.push(token.end_char for token in tokens)
            layout.push_text([token.id for token in tokens])

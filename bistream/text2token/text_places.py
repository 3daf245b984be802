"""Characters of a session's text by its text tokens: where a number of them ends, and which one is being spoken. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable


class TextPlaces:
    """attended: the character that is spoken, by the model's attention; never goes back; None: not known."""

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

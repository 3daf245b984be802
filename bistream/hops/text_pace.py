"""When the text of the language model's next block can be expected, from the pace at which a client's text comes. Pure arithmetic."""

from __future__ import annotations

# The last characters, about one token, may still change.
UNCERTAIN_TOKENS = 1


class TextPace:
    """A session's text as it comes. Its pace is measured from the first piece on, without that piece, which can be any size."""

    def __init__(self, block_tokens: int) -> None:
        """block_tokens: text tokens of a block of the language model."""
        self._block_tokens = block_tokens
        self._characters = 0
        self._before = 0  # of the first piece
        self._began_at: float | None = None

    def came(self, characters: int, now: float) -> None:
        """characters: of the session so far."""
        if characters and self._began_at is None:
            self._began_at, self._before = now, characters
        self._characters = characters

    def next_block_s(self, text_fed: int, text_tokens_fed: int, now: float) -> float | None:
        """Seconds until the text tokens of the next block are expected; 0.0: their characters are there; None: nobody knows.

        text_fed, text_tokens_fed: characters and text tokens that the language model was given so far.
        """
        if self._began_at is None or not text_tokens_fed:
            return None
        needed = (self._block_tokens + UNCERTAIN_TOKENS) * text_fed / text_tokens_fed
        missing = needed - (self._characters - text_fed)
        if missing <= 0.0:
            return 0.0
        return self._seconds_for(missing, now)

    def block_every_s(self, text_fed: int, text_tokens_fed: int, now: float) -> float | None:
        """Seconds in which the text tokens of a block come; None: nobody knows. Arguments as above."""
        if not text_tokens_fed:
            return None
        return self._seconds_for(self._block_tokens * text_fed / text_tokens_fed, now)

    def _seconds_for(self, characters: float, now: float) -> float | None:
        if self._began_at is None:
            return None
        came, seconds = self._characters - self._before, now - self._began_at
        return characters * seconds / came if came > 0 and seconds > 0.0 else None

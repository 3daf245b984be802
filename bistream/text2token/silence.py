"""Long silences are shortened: of a run of silent speech tokens only the first ones go out, and breaks are filled. Pure; one for a session.

CosyVoice3's language model pauses for long; upstream thins its output between language model and flow (cosyvoice/cli/model.py). The
model's own sequence keeps every token.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_RUN = 5  # silent tokens in a row that are spoken: 0.2 s
# At a break the networks behind the language model are given so many, and their audio is left out: of the tokens before them nothing is
# withheld then, for 3 tokens of lookahead and 4 of the vocoder's overlap.
BREAK_TOKENS = 8


class SilenceThinning:
    def __init__(self, silent_tokens: frozenset[int], last_token: int = 0) -> None:
        """silent_tokens: raw codes, any mixture of which is one run; empty: nothing is left out. last_token: of the prompt."""
        self._silent_tokens = silent_tokens
        self._run = 0
        self._last_token = last_token

    def push(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Those of the next tokens that are spoken."""
        if tokens:
            self._last_token = tokens[-1]
        return tuple(filter(self._is_spoken, tokens)) if self._silent_tokens else tuple(tokens)

    def _is_spoken(self, token: int) -> bool:
        self._run = self._run + 1 if token in self._silent_tokens else 0
        return self._run <= LONGEST_RUN

    def filling(self) -> tuple[int, ...]:
        """Tokens for a break: silent ones, or, where none are known, the last one, which mostly fades."""
        return (min(self._silent_tokens, default=self._last_token),) * BREAK_TOKENS

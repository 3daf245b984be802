"""Long silences are shortened: of a run of silent speech tokens only the first ones go out. Pure; one object per session.

CosyVoice3's language model pauses for long; upstream thins its output between language model and flow (cosyvoice/cli/model.py). The
model's own sequence keeps every token.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_RUN = 5  # silent tokens in a row that are spoken: 0.2 s


class SilenceThinning:
    def __init__(self, silent_tokens: frozenset[int]) -> None:
        """silent_tokens: raw codes, any mixture of which is one run; empty: nothing is left out."""
        self._silent_tokens = silent_tokens
        self._run = 0

    def push(self, tokens: Iterable[int]) -> tuple[int, ...]:
        """Those of the next tokens that are spoken."""
        kept = []
        for token in tokens:
            self._run = self._run + 1 if token in self._silent_tokens else 0
            if self._run <= LONGEST_RUN:
                kept.append(token)
        return tuple(kept)

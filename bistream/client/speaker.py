"""With which voice a voice agent speaks, and how: what every session of it begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bistream.client.audio import read_reference
from bistream.contract.lexicon import written_lexicon


@dataclass(frozen=True)
class Speaker:
    """speaker_id: a registered voice or a preset of the server; or reference_wav, float32 [N], 16 kHz mono in [-1, 1], 0.5 to 30 s
    (``recorded`` reads a file), with what is said in it; or gender, of a voice that the server makes of it, pitch, speaking_rate and
    seed. The others by their names in the wire contract; speed: 0.5 to 2. text_normalization: as the
    server does, and agents write Markdown; None for a server that does not know it. lexicon: words or phrases and how they are spoken,
    or that as JSON."""

    speaker_id: str | None = None
    reference_wav: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    reference_text: str | None = field(default=None, repr=False)
    gender: str | None = None
    pitch: str | None = None
    speaking_rate: str | None = None
    instruct_text: str | None = None
    is_cross_lingual: bool = False
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    speed: float = 1.0
    text_normalization: str | None = "+markdown"
    text_type: str | None = None
    lexicon: str | Mapping[str, str | Mapping[str, str]] | None = None
    is_marked: bool = False

    def __post_init__(self) -> None:
        if sum(voice is not None for voice in (self.speaker_id, self.reference_wav, self.gender)) != 1:
            raise ValueError("A speaker is a speaker_id, a reference recording or a gender; give one of them.")

    @classmethod
    def recorded(cls, path: str | Path, reference_text: str, **options: Any) -> Self:
        """The voice of a sound file. Raises ``ValueError`` with a sentence for the user."""
        return cls(reference_wav=read_reference(path), reference_text=reference_text, **options)

    def arguments(self) -> dict[str, Any]:
        """Of ``AsyncBistreamClient.start``."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        lexicon = self.lexicon if self.lexicon is None or isinstance(self.lexicon, str) else written_lexicon(self.lexicon)
        return {**given, "speed": None if self.speed == 1.0 else self.speed, "lexicon": lexicon}

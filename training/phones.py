"""One phone set for all teachers: CMU's 39 phones, schwa and silence. Phones of other sets are mapped to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PHONES = (
    "pau aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z zh".split()
)  # the number of a phone is its place; 0 is silence
SILENCE = 0
FRAMES_PER_SECOND = 50
_OTHERS = {
    **{"h#": "pau", "#": "pau", "brth": "pau", "ssil": "pau", "sil": "pau", "dx": "d", "el": "l", "em": "m", "en": "n", "nx": "n"},
    **{"hv": "hh", "axr": "er", "ix": "ih", "ux": "uw", "q": "pau", "eng": "ng"},
}
_NUMBER = {phone: number for number, phone in enumerate(PHONES)}


def phone_number(name: str) -> int:
    """Raises ``KeyError`` for a phone of an unknown set."""
    return _NUMBER[_OTHERS.get(name, name)]


def frames_of(segments: Sequence[tuple[str, float]], frames: int) -> NDArray[np.uint8]:
    """(phone, end in seconds) in order -> the phone in the middle of each frame of 20 ms, uint8 [frames]; silence after the last."""
    ends = np.array([end for _, end in segments])
    numbers = np.array([phone_number(name) for name, _ in segments] + [SILENCE], dtype=np.uint8)
    middles = (np.arange(frames) + 0.5) / FRAMES_PER_SECOND
    return numbers[np.searchsorted(ends, middles, side="right")]

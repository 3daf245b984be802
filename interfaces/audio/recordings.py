"""Recordings that clients upload."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from bistream.client.audio import within_full_scale
from bistream.client.decoding import MAX_CHANNELS, TooLongError, UnreadableError, UnusualError, decode
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import InvalidInputError


def decode_recording(data: bytes, min_s: float, max_s: float) -> NDArray[np.float32]:
    """float32 [N], 16 kHz mono in [-1, 1]. Stops decoding beyond ``max_s``. Raises ``InvalidInputError``. Takes its time: call it in a
    thread."""
    try:
        samples = decode(io.BytesIO(data), max_s).samples
    except UnreadableError:
        raise InvalidInputError("The recording cannot be decoded as audio; upload a WAV, FLAC, MP3, Ogg, WebM or M4A file.") from None
    except UnusualError:
        raise InvalidInputError(f"The recording has more than {MAX_CHANNELS} channels or an unusual sample rate; convert it.") from None
    except TooLongError:
        raise InvalidInputError(f"The recording is longer than {max_s:g} s; upload a shorter one.") from None
    if len(samples) < min_s * REFERENCE_SAMPLE_RATE:
        raise InvalidInputError(f"The recording lasts {len(samples) / REFERENCE_SAMPLE_RATE:.1f} s; upload at least {min_s:g} s.")
    return within_full_scale(samples)

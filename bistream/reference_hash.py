"""The hash of a reference recording and its transcript: the name under which a server keeps the voice, and a client may ask for it.

Part of the wire contract (``docs/wire_protocol.md``): any client can compute it. numpy only.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

VERSION = b"\x01"
_LENGTH_BYTES = 4


def reference_hash(reference_wav: NDArray[np.float32], reference_text: str | bytes) -> str:
    """64 lower-case hexadecimal digits: SHA-256 over the version, the transcript's length in bytes, the transcript, the samples.

    reference_wav: float32 [N] or [1, N], 16 kHz mono, without padding, exactly as it is sent. reference_text: its transcript, UTF-8.
    Integers and samples are little-endian. The length keeps the end of a transcript apart from the first samples: without it, somebody
    could make another voice with the same hash.
    """
    text = reference_text.encode("utf-8", errors="surrogatepass") if isinstance(reference_text, str) else reference_text
    digest = hashlib.sha256(VERSION + len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    digest.update(np.ascontiguousarray(reference_wav, dtype="<f4").data)
    return digest.hexdigest()

"""The names of voices on the wire: the list that a server gives (output ``voices``), and the hash that stands for a recording."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

REGISTERED, PRESET = "registered", "preset"
_HASH_VERSION = b"\x01"
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class ListedVoice:
    """name: what requests send as ``speaker_id``. kind: ``REGISTERED`` in voices_dir, or a ``PRESET`` of the checkpoint. is_default: it
    speaks where a request brings no voice."""

    name: str
    kind: str
    is_default: bool = False


def format_voices(voices: Iterable[ListedVoice]) -> bytes:
    return json.dumps([asdict(voice) for voice in voices], ensure_ascii=False).encode()


def parse_voices(data: bytes) -> tuple[ListedVoice, ...]:
    """Fields of later servers are left aside. Raises ``ValueError``."""
    try:
        return tuple(ListedVoice(str(one["name"]), str(one["kind"]), bool(one["is_default"])) for one in json.loads(data))
    except (TypeError, KeyError) as error:
        raise ValueError("This is no list of voices.") from error


def reference_hash(reference_wav: NDArray[np.float32], reference_text: str | bytes) -> str:
    """The name under which a server keeps the voice of a recording, which any client can compute (``docs/wire_protocol.md``).

    64 lower-case hexadecimal digits: SHA-256 over the version, the transcript's length in bytes, the transcript, the samples.

    reference_wav: float32 [N] or [1, N], 16 kHz mono, without padding, exactly as it is sent. reference_text: its transcript, UTF-8.
    Integers and samples are little-endian. The length keeps the end of a transcript apart from the first samples: without it, somebody
    could make another voice with the same hash.
    """
    text = reference_text.encode("utf-8", errors="surrogatepass") if isinstance(reference_text, str) else reference_text
    digest = hashlib.sha256(_HASH_VERSION + len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    digest.update(np.ascontiguousarray(reference_wav, dtype="<f4").data)
    return digest.hexdigest()

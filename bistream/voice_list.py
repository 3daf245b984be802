"""The voices that a server has by name, as its front door tells them: the output ``voices`` of ``cosyvoice2_bistream``. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

REGISTERED, PRESET = "registered", "preset"


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

"""Tensors that an earlier start has computed, kept so that a later one need not: as ``findings``, in files of their own.

A file carries what its tensors depend on, and a checksum. One that does not fit, is damaged or cannot be read is as if it were not there.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from contextlib import suppress

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bistream.store.findings import state_path, write_state
from bistream.store.fingerprint import Fingerprint

logger = logging.getLogger(__name__)

_FOLDER = "tensors"
_NEWEST = 3  # files of a kind that stay: a change of the program, the GPU or the checkpoint leaves one of 100 MB behind
_CHECKSUM_BYTES = 4


def recall(kind: str, facts: Fingerprint) -> dict[str, Tensor] | None:
    """What was kept under these facts, on the CPU."""
    path = state_path(_FOLDER, _name(kind, facts))
    if path is None:
        return None
    try:
        content = memoryview(path.read_bytes())
        header = _header(facts)
        body = content[len(header) : -_CHECKSUM_BYTES]
        if content[: len(header)] != header or zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") != content[-_CHECKSUM_BYTES:]:
            logger.warning("%s is damaged; what it holds is computed again", path)
            return None
        return load(bytes(body))
    except (OSError, ValueError, SafetensorError):
        return None


def keep(kind: str, facts: Fingerprint, tensors: Mapping[str, Tensor]) -> None:
    """tensors: on any device."""
    path = state_path(_FOLDER, _name(kind, facts))
    if path is None:
        return
    body = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
    write_state(path, _header(facts), body, zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little"))
    with suppress(OSError):  # another start may remove them as well
        for old in sorted(path.parent.glob(f"{kind}-*"), key=lambda one: one.stat().st_mtime)[:-_NEWEST]:
            old.unlink()


def _header(facts: Fingerprint) -> bytes:
    """One line."""
    return json.dumps(dict(facts.facts), sort_keys=True).encode() + b"\n"


def _name(kind: str, facts: Fingerprint) -> str:
    return f"{kind}-{facts.digest}"

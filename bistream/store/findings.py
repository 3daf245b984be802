"""What an earlier start has found out about a checkpoint, kept so that a later one need not compute it again.

A finding is kept under everything that it depends on (``fingerprint``), so another checkpoint, GPU, version or program never finds it. It
saves time and decides nothing that a start could not find out again: what cannot be read or written is as if it were not there.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from bistream.processes.whole_file import write_whole
from bistream.store.fingerprint import Fingerprint

logger = logging.getLogger(__name__)

STATE_VARIABLE = "BISTREAM_STATE"  # environment of the models: the keeper's state folder; unset: nothing is kept
_FOLDER = "findings"


def recall(kind: str, facts: Fingerprint) -> Any:
    """The value that was kept under these facts, as JSON has it; ``None`` where there is none."""
    path = state_path(_FOLDER, f"{kind}-{facts.digest}.json")
    if path is None:
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return kept["value"] if kept["facts"] == dict(facts.facts) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(kind: str, facts: Fingerprint, value: Any) -> None:
    """value: anything that JSON can hold but ``None``."""
    path = state_path(_FOLDER, f"{kind}-{facts.digest}.json")
    if path is not None:
        write_state(path, json.dumps({"facts": dict(facts.facts), "value": value}, indent=1).encode())


def state_path(folder: str, name: str) -> Path | None:
    """In a folder of the state folder; ``None`` where nothing is kept."""
    state = os.environ.get(STATE_VARIABLE)
    return Path(state) / folder / name if state else None


def write_state(path: Path, *parts: bytes) -> None:
    """All of it or nothing, with a warning: a start goes on without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, *parts)
    except OSError as error:
        logger.warning("%s cannot be kept for later starts (%s); choose another --state-dir", path, error.strerror)

"""One sentence about how many sessions a server has room for, from the settings of its front model, which clients may read."""

from __future__ import annotations

from collections.abc import Mapping


def room_of(parameters: Mapping[str, str]) -> str | None:
    """None where the server does not say it. parameters: of its front model's configuration."""
    sessions, speech_s = parameters.get("max_sessions"), float(parameters.get("reserved_speech_s", 0))
    if sessions is None:
        return None
    remembered = f", and remembers at least {speech_s:g} s of the speech of each" if speech_s else ""
    return f"has room for {sessions} sessions at a time{remembered}"

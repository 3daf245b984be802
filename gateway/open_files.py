"""Whether the process may have as many files open as its limits on connections say."""

from __future__ import annotations

import resource

from bistream.errors import ConfigError
from bistream.process_limits import raise_soft_limit
from gateway.settings import GateSettings

RESERVE = 128  # the interpreter, its libraries, listening sockets, the link to Triton, and connections about to be refused


def needed_files(settings: GateSettings) -> int:
    doors = 1 if settings.http is None else 2
    return doors * settings.limits.max_connections + RESERVE


def ensure_open_files(settings: GateSettings) -> None:
    """Raise the soft limit as far as needed. Raises ``ConfigError`` when the hard one is too low."""
    needed = needed_files(settings)
    allowed = raise_soft_limit(resource.RLIMIT_NOFILE, needed)
    if allowed < needed:
        raise ConfigError(
            f"The gate needs {needed} open files for its connections and may have {allowed}; "
            f"run `ulimit -n {needed}` before it, or lower --max-connections."
        )

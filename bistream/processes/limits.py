"""The limits of this process and its children (setrlimit(2)), for the keeper and the gate."""

from __future__ import annotations

import resource
import sys

NO_LIMIT = sys.maxsize


def raise_soft_limit(kind: int, wanted: int) -> int:
    """Raise the soft limit to ``wanted``, or to the hard limit if that is lower; a higher one stays. Returns what it is then.

    kind: one of ``resource.RLIMIT_*``.
    """
    soft, hard = (NO_LIMIT if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind))
    reachable = min(wanted, hard)
    if soft >= reachable:
        return soft
    resource.setrlimit(kind, (_to_system(reachable), _to_system(hard)))
    return reachable


def _to_system(limit: int) -> int:
    return resource.RLIM_INFINITY if limit == NO_LIMIT else limit

"""Exit codes of the command-line clients, and how they report an error."""

from __future__ import annotations

import sys

EXIT_OK, EXIT_SERVER, EXIT_USAGE, EXIT_CONNECTION, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def fail(sentence: str, code: int) -> int:
    """One line on the standard error; returns ``code``."""
    print(f"error: {sentence}", file=sys.stderr)
    return code

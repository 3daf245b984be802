"""``bistream serve``: the server of a checkout, as ``scripts/serve.py`` starts it.

This process becomes that program, so that it has its process id: a signal that is sent to it drains.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bistream.client.exit_codes import fail

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = Path("scripts/serve.py")
EXIT_FAILED = 1


def main(arguments: list[str], checkout: Path = CHECKOUT) -> int:
    """arguments: of ``scripts/serve.py``. Returns only where there is no checkout: a wheel has neither the model repository nor Triton."""
    program = checkout / PROGRAM
    if not program.is_file():
        sentence = "Triton and the model repository are not part of the installed package; clone the repository and run: bash run.sh serve"
        return fail(sentence, EXIT_FAILED)
    os.execv(sys.executable, [sys.executable, str(program), *arguments])

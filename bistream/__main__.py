"""``python -m bistream``: the same as the installed command ``bistream``."""

from __future__ import annotations

import sys

from bistream.commands import main

if __name__ == "__main__":
    sys.exit(main.main())

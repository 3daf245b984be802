"""``bistream say-http`` as a script, for a checkout: see ``bistream/client/say_http.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.client.say_http import main

if __name__ == "__main__":
    sys.exit(main())

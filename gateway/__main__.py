"""``python -m gateway``: see ``--help`` and docs/gateway.md."""

from __future__ import annotations

import os
import sys

# Read when grpc is imported: its own threads for events hand every message to one more thread, which takes a quarter more of a core
# (benchmarks/fronts.py). A version that does not know the names says so in its log, and goes on.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # not a line for each handshake that fails

from gateway.process import main

if __name__ == "__main__":
    sys.exit(main())

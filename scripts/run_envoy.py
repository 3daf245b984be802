#!/usr/bin/env python3
"""Becomes Envoy in a container of its own (deploy/compose.yaml): before all servers that answer to one name, at the ports of the image.

run_envoy.py bistream
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.keeper.envoy_config import ProxySettings, ServerAddress, envoy_config
from bistream.keeper.host import ServerError
from scripts.serve_gpus import ANYWHERE, find_envoy


def command(host: str) -> list[str]:
    """host: the name of the servers. Raises ``ServerError`` where Envoy is not installed."""
    server = ServerAddress(host, grpc_port=8001, http_port=8000, health_port=8003)
    config = envoy_config(ProxySettings(ANYWHERE, server.grpc_port, ANYWHERE, server.http_port, admin_port=9901), [server])
    return [str(find_envoy(None)), "--config-yaml", config, "--log-level", "warning"]


if __name__ == "__main__":
    try:
        words = command(sys.argv[1])
    except ServerError as error:
        sys.exit(f"run_envoy.py: {error}")
    os.execv(words[0], words)

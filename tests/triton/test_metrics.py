"""The metrics port, as an operator reads it."""

from __future__ import annotations

import re
import urllib.request

from bistream.keeper.server_process import TritonServer


def scrape(server: TritonServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports.metrics}/metrics", timeout=10) as response:
        return str(response.read().decode())


def test_the_tier_of_every_network_is_a_metric(server: TritonServer) -> None:
    """Two processes contribute to one family."""
    found = dict(re.findall(r'^bistream_tier\{stage="(\w+)",tier="(\w+)"\} 1(?:\.0+)?$', scrape(server), re.MULTILINE))
    assert found == {"language_model": "plain", "flow": "plain", "vocoder": "plain"}

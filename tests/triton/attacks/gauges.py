"""What sessions hold in the models, as the server's own metrics tell it."""

from __future__ import annotations

import urllib.request

from tests.triton.conftest import PATIENCE_S, wait_for
from tests.triton.scraping import Scrape
from tests.triton.served import Served

HELD = ("bistream_sessions", "bistream_lm_sequences", "bistream_kv_blocks", "bistream_hop_queue_depth", "bistream_vocoder_slots")
VOICES = "bistream_flow_pages"  # cached voices keep some


def held(served: Served) -> dict[str, float]:
    """The gauges of sessions and of what they reserve that are not 0."""
    with urllib.request.urlopen(f"http://127.0.0.1:{served.health_port}/metrics", timeout=PATIENCE_S) as response:
        found = Scrape(response.read().decode())
    sums = {
        name: sum(sample.value for sample in found.families[name].samples if sample.labels.get("state") != "free")
        for name in HELD
        if name in found.families
    }
    assert sums, "the metrics have no gauges of sessions"
    return {name: value for name, value in sums.items() if value}


def wait_free(served: Served) -> None:
    """Until nothing is held any more."""
    wait_for(lambda: held(served) == {}, "everything free")

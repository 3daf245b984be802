"""Minutes of abuse by many clients at a time, after which the server must be as good, and as small, as before.

Runs only where BISTREAM_CHAOS_SECONDS is set, to the length of each storm; BISTREAM_CHAOS_CLIENTS (default 12) is their number.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bistream.triton.server_process import TritonServer
from tests.triton.chaos import Storm, full_house
from tests.triton.conftest import serve, wait_for

logger = logging.getLogger(__name__)

SECONDS = float(os.environ.get("BISTREAM_CHAOS_SECONDS", "60"))
CLIENTS = int(os.environ.get("BISTREAM_CHAOS_CLIENTS", "12"))
SESSIONS = 10
STORMS = 3  # the first fills caches and pools
GROWTH_ALLOWED_MB = 40.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("BISTREAM_CHAOS_SECONDS" not in os.environ, reason="takes minutes; set BISTREAM_CHAOS_SECONDS, e.g. to 60"),
]


@pytest.fixture(params=["streaming", "offline"])
def chaos_server(request: pytest.FixtureRequest, tmp_path: Path, tiny_model_dir: Path) -> Iterator[TritonServer]:
    limits = {"max_sessions": "64", "cosyvoice2_bistream.max_sessions": str(SESSIONS)}
    yield from serve(tmp_path, tiny_model_dir, **limits, **{"cosyvoice2.decoupled_mode": str(request.param == "streaming")})


def voices(reference_wav: NDArray[np.float32]) -> dict[str, dict[str, Any]]:
    """Two voices; the second has little to say for its length, so that its sessions wait for text before they speak."""
    return {
        "talkative": {"reference_wav": reference_wav, "reference_wav_len": reference_wav.size, "reference_text": "A reference."},
        "silent": {"reference_wav": np.tile(reference_wav, 2)[:, ::-1].copy(), "reference_wav_len": 24000, "reference_text": "A"},
    }


def resident_mb(server: TritonServer) -> dict[str, float]:
    """Resident memory of the server and of its model processes, by name."""
    sizes = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":\t" in line)
            if server.pid in (int(fields["Pid"]), int(fields["PPid"])):
                command = (status.parent / "cmdline").read_text(encoding="utf-8").split("\0")
                name = "server" if int(fields["Pid"]) == server.pid else command[-3]
                sizes[name] = int(fields["VmRSS"].split()[0]) / 1024
        except (OSError, KeyError):
            continue
    return sizes


def test_the_server_outlives_a_storm(chaos_server: TritonServer, reference_wav: NDArray[np.float32]) -> None:
    before: dict[str, float] = {}
    for number in range(STORMS):
        storm = Storm(chaos_server.grpc_url, voices(reference_wav), seed=random.randrange(10**6))
        counts = storm.run(SECONDS, CLIENTS)
        logger.info("tried: %s", dict(sorted(counts.items())))
        assert storm.failures == []
        assert chaos_server.exit_code() is None and chaos_server.dead_models() == 0
        wait_for(lambda: full_house(chaos_server.grpc_url, voices(reference_wav)["silent"], SESSIONS) == SESSIONS, "every place free")
        memory = resident_mb(chaos_server)
        logger.info("resident MB: %s", {name: round(size) for name, size in memory.items()})
        if number == 0:
            before = memory
    grown = {name: memory[name] - size for name, size in before.items() if memory[name] - size > GROWTH_ALLOWED_MB}
    assert grown == {}
    assert chaos_server.settings.log_path is not None
    assert "Traceback" not in chaos_server.settings.log_path.read_text(encoding="utf-8")

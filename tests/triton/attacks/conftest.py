"""Two kept servers for the attacks: one whose limits are short, one with room for many sessions. Both answer ``cosyvoice2`` offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import port
from tests.triton.attacks.sizes import LONG, SHORT, Sizes
from tests.triton.served import Served, serving

SHORT_S = 15.0  # of every limit of time on the first server; a busy machine must have spoken by then
UNREAD_S = 15.0  # audio that its gate keeps for a client that does not read
PLACES = 8
OFFLINE = {"cosyvoice2.decoupled_mode": "False"}
UNLIMITED = ("--starts-per-second", "0")


@pytest.fixture(scope="session")
def sizes(request: pytest.FixtureRequest) -> Sizes:
    return LONG if request.config.getoption("--long-attacks") else SHORT


@pytest.fixture(scope="package")
def hostile(tmp_path_factory: pytest.TempPathFactory, brief_model_dir: Path) -> Iterator[Served]:
    """Small limits, which attacks reach within seconds."""
    gate = ("--max-unread-audio-s", str(UNREAD_S), "--stall-timeout-s", str(SHORT_S), "--max-silence-s", str(SHORT_S))
    settings = {"session_idle_timeout_s": str(SHORT_S), "cosyvoice2_bistream.max_sessions": str(PLACES), "max_text_chars": "400"}
    yield from attacked(tmp_path_factory.mktemp("hostile"), brief_model_dir, gate, {**OFFLINE, **settings})


@pytest.fixture(scope="package")
def busy(tmp_path_factory: pytest.TempPathFactory, brief_model_dir: Path) -> Iterator[Served]:
    """Room for many sessions. Small steps, so that most prompts take several, and places of the text read from the attention."""
    settings = {"max_sessions": "160", "cosyvoice2_bistream.max_sessions": "80", "voice_cache_size": "8", "max_offline_jobs": "80"}
    settings |= {"llm_bistream.max_rows": "64", "llm_bistream.text_position_head": "1,0", "cosyvoice2.bls_instance_num": "2"}
    gate = ("--drain-timeout-s", "300")  # no test waits for it
    yield from attacked(tmp_path_factory.mktemp("busy"), brief_model_dir, gate, {**OFFLINE, **settings})


def attacked(folder: Path, model_dir: Path, gate: tuple[str, ...], settings: dict[str, str]) -> Iterator[Served]:
    health_port = port()
    with serving(folder, model_dir, *UNLIMITED, "--exit-timeout-s", "3", "--health-port", str(health_port), *gate, **settings) as served:
        served.health_port = health_port
        yield served

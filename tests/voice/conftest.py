"""What is heard of the trained voice: these tests run when there is one, in ``assets/voice`` or ``VOICE_DIR``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bistream.config import RuntimeConfig
from bistream.local import LocalPipeline
from bistream.text2token.service import SpeechTokenService
from tests.voice.judges import Judge
from tests.voice.speaking import PLACES, VOICE, VoiceUnderTest

ROOT = Path(__file__).resolve().parents[2]
VOICE_DIR = Path(os.environ.get("VOICE_DIR") or ROOT / "assets" / "voice")
JUDGES = Path(os.environ.get("JUDGES_PYTHON") or ROOT / "build" / "judges" / "bin" / "python")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if (VOICE_DIR / "llm.pt").exists():
        return
    reason = f"{VOICE_DIR} holds no trained voice; train one (training/README.md), or set VOICE_DIR"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def runtime() -> RuntimeConfig:
    """One thread, and the context of the demo. Sessions that speak at the same time take a fraction of their time one after the other."""
    return RuntimeConfig(
        model_dir=str(VOICE_DIR),
        device="cpu",
        num_threads=1,
        max_sessions=PLACES + 1,
        flow_state_mb=1024,
        left_context_chunks=4,
        default_speaker_id=VOICE,
    )


@pytest.fixture(scope="session")
def voice(runtime: RuntimeConfig) -> Iterator[VoiceUnderTest]:
    """Its language model alone: speech tokens say when it ends and what the pieces of a text change, without any audio."""
    service = SpeechTokenService(runtime)
    yield VoiceUnderTest(service, VOICE_DIR)
    service.close()


@pytest.fixture(scope="session")
def pipeline(runtime: RuntimeConfig) -> Iterator[LocalPipeline]:
    with LocalPipeline(runtime) as opened:
        yield opened


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """Ears that never heard the training, in an environment of their own."""
    if not JUDGES.exists():
        pytest.skip(f"{JUDGES} does not exist; install the judges: bash run.sh judges")
    with Judge(JUDGES) as started:
        yield started


@pytest.fixture(scope="session")
def teacher_s() -> dict[str, list[float]]:
    """Seconds of the default voice's teacher for every sentence of sets A and B."""
    found: dict[str, list[float]] = json.loads((Path(__file__).parent / "teacher_seconds.json").read_text(encoding="utf-8"))
    return found

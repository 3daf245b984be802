"""LiveKit Agents: its own plugins for other vendors before the interfaces, ours before the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Front, found_by, seconds_of

pytestmark = pytest.mark.slow
PROGRAM = "tests/clients/programs/livekit_sdk.py"
HAVE_WORDS = ("elevenlabs", "elevenlabs-words", "ours")


def check(front: Front, name: str, found: Any) -> None:
    assert found["errors"] == []
    # Compressed audio is longer by the encoder's delay, and word tokenizers change the blanks.
    front.check_duration(found["turn"]["seconds"], found["text"], tolerance_s=0.25)
    front.check_duration(found["after"]["seconds"], "Yes, go on.", tolerance_s=0.25)
    if name in HAVE_WORDS:
        assert "".join(found["turn"]["words"].split()) == "".join(found["text"].split())


@pytest.mark.parametrize("name", ["openai", "elevenlabs", "elevenlabs-words", "deepgram-v2", "deepgram-v1", "cartesia"])
def test_livekits_plugins(front: Front, name: str) -> None:
    check(front, name, found_by("livekit", PROGRAM, front.address, name, "0"))
    front.check_idle()


@pytest.mark.parametrize("name", ["elevenlabs-words", "deepgram-v2", "deepgram-v1", "ours"])
def test_a_pause_longer_than_livekit_waits_for_audio(front: Front, name: str) -> None:
    address = front.grpc if name == "ours" else front.address
    check(front, name, found_by("livekit", PROGRAM, address, name, "11"))


def test_our_plugin(front: Front) -> None:
    found = found_by("livekit", PROGRAM, front.grpc, "ours", "0")
    check(front, "ours", found)
    front.check_duration(found["turn"]["seconds"], found["text"])  # as it was sent, to the sample
    assert found["turn"]["words"] == found["text"] and found["characters"] == [len(found["text"]), len("Yes, go on.")]


def test_our_example(front: Front, tmp_path: Path) -> None:
    output = tmp_path / "turn.wav"
    transcript = Path("assets/reference.txt").read_text(encoding="utf-8").strip()
    words = ("--recording", "assets/reference.wav", "--transcript", transcript, "--output", str(output))
    said = found_by("livekit", "plugins/livekit/example.py", front.grpc, *words, parse=str)
    assert "first audio after" in said
    front.check_duration(seconds_of(output), "The first words are heard while the last ones are still being written. ", tolerance_s=0.03)

"""Every call of the vendors' READMEs and quick starts, in Python and in Node, with address and key changed and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.conftest import Front, TlsFront, found_by, found_by_node

pytestmark = pytest.mark.slow
PROGRAMS = "tests/clients/programs"
VENDORS = ("openai", "elevenlabs", "cartesia", "deepgram")


def check(found: dict[str, Any], *, audio: tuple[str, ...]) -> None:
    """audio: counts of bytes. What was listed has the voice that was asked for by its name."""
    assert all(found[name] > 200 for name in audio), found
    if "get" in found:
        assert found["get"] == "anna" and "anna" in (found.get("search") or found["list"])
    if "models" in found:
        assert {"eleven_multilingual_v2", "gpt-4o-mini-tts"} & set(found["models"])


AUDIO = {
    "python": {
        "openai": ("file", "wav", "stream"),
        "elevenlabs": ("convert", "stream", "convert_with_timestamps", "stream_with_timestamps", "cloned"),
        "cartesia": ("generate", "websocket", "async", "cloned"),
        "deepgram": ("generate", "with_model", "v1", "v2"),
    },
    "node": {
        "openai": ("mp3", "stream"),
        "elevenlabs": ("convert", "stream", "timed", "parts", "cloned"),
        "cartesia": ("generate", "websocket", "cloned"),
        "deepgram": ("generate", "v1", "v2"),
    },
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_python(vendor: str, front: Front, tls_front: TlsFront) -> None:
    insists_on_tls = vendor == "elevenlabs"
    address = tls_front.address if insists_on_tls else front.address
    variables = {"SSL_CERT_FILE": str(tls_front.certificate)} if insists_on_tls else {}
    found = found_by("sdk", f"{PROGRAMS}/quick_starts.py", vendor, address, **variables)
    check(found, audio=AUDIO["python"][vendor])
    front.check_idle()


@pytest.mark.parametrize("vendor", VENDORS)
def test_node(vendor: str, front: Front, tls_front: TlsFront) -> None:
    address = tls_front.address if vendor == "cartesia" else front.address
    found = found_by_node(f"{PROGRAMS}/quick_starts.cjs", vendor, address, NODE_EXTRA_CA_CERTS=str(tls_front.certificate))
    check(found, audio=AUDIO["node"][vendor])
    front.check_idle()

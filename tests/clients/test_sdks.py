"""The vendors' own Python packages before the interfaces; ``bash run.sh test-clients`` installs them into an environment of their own."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Front, TlsFront, found_by

pytestmark = pytest.mark.slow
BYTES_PER_SECOND = 48000  # 24 kHz, 16 bit
PROGRAMS = "tests/clients/programs"


def test_openai(front: Front) -> None:
    length = 3 if front.is_real else 20
    found = found_by("sdk", f"{PROGRAMS}/openai_sdk.py", front.address, str(length))
    front.check_duration(found["bytes"]["pcm"] / BYTES_PER_SECOND, "Hello there. " * length)
    assert found["bytes"]["pcm"] == found["bytes"]["wav"] - 44  # one seed, the same speech tokens
    assert all(found["bytes"].values()) and found["error"] == ["voice_not_found", "voice", True]
    assert "tts-1" in found["models"]
    front.check_duration(found["voice"] / BYTES_PER_SECOND, "Hello")
    front.check_idle()


def test_dashscope(front: Front) -> None:
    found = found_by("sdk", f"{PROGRAMS}/dashscope_sdk.py", front.address)
    front.check_duration(found["pcm"] / BYTES_PER_SECOND, "Hello world")
    front.check_duration(found["tokens"] / BYTES_PER_SECOND, "你好，今天天气不错。再见")
    assert found["default"].startswith("ff") and found["events"] > 0
    assert found["cancelled"] and "There is no voice" in found["error"]
    assert [word for word, *_ in found["words"]] == ["Hello", "world"] and found["peak"] > 0
    front.check_idle()


def test_deepgram_v2(front: Front) -> None:
    found = found_by("sdk", f"{PROGRAMS}/deepgram_sdk.py", front.address)
    front.check_duration(found["audio_duration_ms"] / 1000, "Hello world.")
    assert found["first_turn_bytes"] == pytest.approx(found["audio_duration_ms"] * 32, abs=640)  # 16 kHz; the resampler holds some back
    assert found["events"][:4] == ["Connected", "SpeechStarted", "Flushed", "SpeechMetadata"]
    assert "".join(found["texts"]) == found["second_text"]
    front.check_idle()


def test_elevenlabs_behind_tls(tls_front: TlsFront, front: Front) -> None:
    found = found_by("sdk", f"{PROGRAMS}/elevenlabs_sdk.py", tls_front.address, SSL_CERT_FILE=str(tls_front.certificate))
    front.check_duration(found["realtime"] / BYTES_PER_SECOND, "Hello there, this is a test.  ")  # it ends with a blank of its own
    front.check_duration(found["http"] / BYTES_PER_SECOND, "Hello")
    assert found["voices"][0] == "anna" and front.is_real == (len(found["voices"]) > 1)  # the real one has a preset of its own
    assert found["characters"] == list("Hello")
    front.check_duration(found["timed"] / BYTES_PER_SECOND, "Hello")
    front.check_idle()


def test_deepgram_v1(front: Front) -> None:
    found = found_by("sdk", f"{PROGRAMS}/deepgram_v1_sdk.py", front.address)
    for count, text in zip(found["bytes"], ("Hello world. ", "Again. "), strict=True):
        front.check_duration(count / BYTES_PER_SECOND, text)
    assert found["events"] == [["Metadata", None], ["Flushed", 0], ["Flushed", 1], ["Cleared", 0]] and found["after_close"] == 0
    front.check_duration(found["http"] / BYTES_PER_SECOND, "Hello")
    front.check_idle()


def test_cartesia(front: Front) -> None:
    found = found_by("sdk", f"{PROGRAMS}/cartesia_sdk.py", front.address)
    front.check_duration(found["context"] / BYTES_PER_SECOND, "Hello world.")
    front.check_duration(found["after_cancel"] / BYTES_PER_SECOND, "After it.")
    front.check_duration(found["bytes"] / BYTES_PER_SECOND, "Hello")
    assert found["words"] == ["Hello", "world."] and found["bytes"] == found["events"]
    assert found["types"][-1] == "done" and found["types"].count("flush_done") == 1
    assert found["error"] == [[404, "unknown_speaker"]] and found["status"] == 404
    assert found["event_types"][-1] == "done" and "timestamps" in found["event_types"]
    front.check_idle()

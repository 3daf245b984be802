"""What people have recordings in: every common format is read as 16 kHz mono, and what cannot be read is told in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from bistream.client.audio import LONGEST_S, read_recording, read_reference
from bistream.types import FloatArray
from tests.sounds import speech_like

SPEECH = speech_like(24_000)
CONTAINERS = {"m4a": "aac", "aac": "aac", "webm": "libopus", "mp4": "aac"}  # that soundfile does not read


def resampled(rate: int) -> FloatArray:
    """``SPEECH`` at another rate, well enough."""
    places = np.arange(int(len(SPEECH) * rate / 16_000)) * 16_000 / rate
    return np.interp(places, np.arange(len(SPEECH)), SPEECH).astype(np.float32)


def encode(path: Path, codec: str) -> Path:
    with av.open(str(path), "w", format={"m4a": "ipod", "aac": "adts"}.get(path.suffix[1:])) as container:
        stream: Any = container.add_stream(codec, rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray((resampled(48_000) * 32_767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = 48_000
        for made in av.AudioResampler(format=stream.format, layout="mono", rate=48_000, frame_size=960).resample(frame):
            container.mux(stream.encode(made))
        container.mux(stream.encode(None))
    return path


def likeness(samples: FloatArray, expected: FloatArray = SPEECH) -> float:
    """Largest correlation of the two, whatever the delay of a codec: 1 for equal sounds."""
    size = 2 * max(len(samples), len(expected))
    products = np.fft.irfft(np.fft.rfft(samples, size) * np.conj(np.fft.rfft(expected, size)))
    return float(products.max() / np.linalg.norm(samples) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("name", "rate", "subtype"),
    [
        ("phone.wav", 8_000, "ULAW"),
        ("phone.wav", 8_000, "ALAW"),
        ("studio.wav", 96_000, "PCM_24"),
        ("studio.wav", 48_000, "PCM_32"),
        ("old.wav", 22_050, "PCM_U8"),
        ("old.wav", 44_100, "IMA_ADPCM"),
        ("editor.wav", 44_100, "FLOAT"),
        ("editor.wav", 44_100, "DOUBLE"),
        ("memo.mp3", 44_100, "MPEG_LAYER_III"),
        ("chat.ogg", 48_000, "OPUS"),
        ("chat.ogg", 44_100, "VORBIS"),
        ("archive.flac", 16_000, "PCM_16"),
    ],
)
def test_every_kind_of_wav_and_what_soundfile_knows(tmp_path: Path, name: str, rate: int, subtype: str) -> None:
    soundfile.write(tmp_path / name, resampled(rate), rate, subtype=subtype)
    recording = read_recording(tmp_path / name)
    assert recording.source_rate == rate and recording.samples.dtype == np.float32
    assert abs(len(recording.samples) - len(SPEECH)) < 1600 and likeness(recording.samples) > 0.8  # 8 kHz has no hiss


@pytest.mark.parametrize("suffix", CONTAINERS)
def test_what_phones_and_browsers_record(tmp_path: Path, suffix: str) -> None:
    recording = read_recording(encode(tmp_path / f"memo.{suffix}", CONTAINERS[suffix]))
    assert recording.source_rate == 48_000
    assert abs(len(recording.samples) - len(SPEECH)) < 1600 and likeness(recording.samples) > 0.9


def test_without_the_decoder_the_sentence_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = encode(tmp_path / "memo.m4a", "aac")
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "bistream.client.decoding", raising=False)
    monkeypatch.delattr("bistream.client.decoding", raising=False)
    with pytest.raises(ValueError, match=r"memo\.m4a is no WAV.*pip install av.*ffmpeg -i .*memo\.m4a recording\.wav$"):
        read_reference(path)


def test_what_is_no_recording_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").write_bytes(b"")
    soundfile.write(tmp_path / "silent.wav", np.zeros(0), 16_000)
    (tmp_path / "page.m4a").write_text("<html>not found</html>", encoding="utf-8")
    soundfile.write(tmp_path / "nan.wav", np.full(16_000, np.nan), 16_000, subtype="FLOAT")
    soundfile.write(tmp_path / "hour.flac", np.zeros(int(LONGEST_S + 1) * 8_000, np.int16), 8_000)
    for name, words in {
        "empty.wav": "read as audio",
        "missing.wav": "is not there",
        "silent.wav": "contains no audio",
        "page.m4a": "read as audio",
        "nan.wav": "no numbers",
        "hour.flac": "lasts more",
    }.items():
        with pytest.raises(ValueError, match=words) as caught:
            read_reference(tmp_path / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_one_silent_channel_halves_the_level_and_opposite_channels_are_told(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "left.wav", np.stack([SPEECH, 0 * SPEECH], axis=1), 16_000)
    np.testing.assert_allclose(read_reference(tmp_path / "left.wav"), SPEECH / 2, atol=1e-3)
    soundfile.write(tmp_path / "opposite.wav", np.stack([SPEECH, -SPEECH], axis=1), 16_000)
    with pytest.raises(ValueError, match=r"channels of .*opposite\.wav cancel each other out; give one of them"):
        read_reference(tmp_path / "opposite.wav")

"""Audio files that clients write."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from bistream.client.audio import RawWriter, StreamWriter, WavWriter


def test_a_wav_is_playable_after_every_chunk(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    chunks = [np.linspace(-1, 1, 1000, dtype=np.float32), np.full(500, 0.25, np.float32), np.full(7, 2.0, np.float32)]
    with WavWriter(path) as wav:
        assert not path.exists()
        for count in range(1, 4):
            wav.write(chunks[count - 1])
            samples, rate = soundfile.read(path, dtype="float32")  # while the writer still has it open
            assert rate == 24000
            np.testing.assert_allclose(samples, np.clip(np.concatenate(chunks[:count]), -1, 1), atol=1e-4)
    with soundfile.SoundFile(path) as file:
        assert (file.subtype, file.comment, file.frames) == ("PCM_16", "synthetic speech", 1507)


def test_a_file_that_was_there_stays_until_there_is_audio(tmp_path: Path) -> None:
    for writer, name in ((WavWriter, "out.wav"), (RawWriter, "out.pcm")):
        path = tmp_path / name
        path.write_bytes(b"earlier")
        with writer(path) as output:
            output.write(np.zeros(0, np.float32))
        assert path.read_bytes() == b"earlier"
        with writer(path) as output:
            output.write(np.zeros(4, np.float32))
        assert path.read_bytes() != b"earlier"


def test_where_nothing_can_be_written_is_known_before_there_is_audio(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "out.wav", tmp_path):
        for writer in (WavWriter, RawWriter):
            with pytest.raises(OSError, match="cannot be written"):
                writer(path)


def test_a_stream_can_be_read_as_it_grows(tmp_path: Path) -> None:
    samples = np.linspace(-1, 1, 1000, dtype=np.float32)
    stream = io.BytesIO()
    with StreamWriter(stream, has_header=True) as output:
        for chunk in np.split(samples, [10, 500]):
            output.write(chunk)
    stream.seek(0)
    read, rate = soundfile.read(stream, dtype="float32")
    assert rate == 24000
    np.testing.assert_allclose(read, samples, atol=1e-4)

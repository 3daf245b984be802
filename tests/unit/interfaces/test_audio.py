"""Formats while they are made: nothing is held back long, nothing is lost. Uploads that are not what they say."""

from __future__ import annotations

import io
import zlib

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bistream.errors import InvalidInputError
from interfaces.audio.encoder import Encoder
from interfaces.audio.formats import (
    WAV,
    OutputFormat,
    cartesia_format,
    checked,
    dashscope_format,
    deepgram_format,
    elevenlabs_format,
    openai_format,
)
from interfaces.audio.recordings import decode_recording

PIECE = 960  # 40 ms
SECONDS = 1


def tone() -> NDArray[np.float32]:
    return np.asarray(0.3 * np.sin(np.arange(24000 * SECONDS) * 0.05), np.float32)


@pytest.mark.parametrize(
    ("target", "first_ms", "gap_ms"),
    [
        (openai_format("pcm"), 40, 40),
        (openai_format("wav"), 40, 40),
        (openai_format("mp3"), 80, 80),
        (openai_format("opus"), 40, 40),
        (openai_format("aac"), 120, 120),
        (openai_format("flac"), 40, 40),
        (elevenlabs_format("mp3_22050_32"), 80, 80),
        (elevenlabs_format("opus_48000_64"), 40, 40),
        (elevenlabs_format("pcm_16000"), 40, 40),
        (elevenlabs_format("ulaw_8000"), 40, 40),
    ],
)
def test_bytes_come_while_the_audio_is_made(target: OutputFormat, first_ms: int, gap_ms: int) -> None:
    encoder, came = Encoder(target), [0]
    for end in range(PIECE, 24000 * SECONDS + 1, PIECE):
        if encoder.feed(tone()[end - PIECE : end]):
            came.append(end // 24)
    encoder.finish()
    assert came[1] <= first_ms and max(np.diff(came)) <= gap_ms


@pytest.mark.parametrize("codec", [*WAV.values(), "mp3", "opus", "flac"])
@pytest.mark.parametrize("comment", ["synthetic speech", ""])
def test_containers_have_a_place_for_the_comment(codec: str, comment: str) -> None:
    encoder = Encoder(OutputFormat(codec, 48_000 if codec == "opus" else 24_000), comment=comment)
    with av.open(io.BytesIO(encoder.feed(tone()) + encoder.finish()), "r") as file:
        stream = file.streams.audio[0]
        assert {**file.metadata, **stream.metadata}.get("comment", "") == comment
        assert sum(frame.samples for frame in file.decode(stream)) >= encoder.format.sample_rate * SECONDS


@pytest.mark.parametrize("codec", ["aac", "pcm_s16le"])
def test_others_are_the_same_with_a_comment(codec: str) -> None:
    made = [Encoder(OutputFormat(codec, 24_000), comment=comment) for comment in ("synthetic speech", "")]
    one, other = (encoder.feed(tone()) + encoder.finish() for encoder in made)
    assert one == other


@pytest.mark.parametrize("name", ["pcm_8000", "pcm_16000", "pcm_22050", "pcm_44100", "pcm_48000", "ulaw_8000", "alaw_16000"])
def test_raw_audio_has_its_length_at_every_rate(name: str) -> None:
    target = elevenlabs_format(name)
    encoder = Encoder(target)
    data = encoder.feed(tone()) + encoder.finish()
    assert len(data) == SECONDS * target.sample_rate * (2 if target.codec == "pcm_s16le" else 1)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=6), st.sampled_from(["wav", "flac", "pcm_16000", "mp3_44100_128"]))
def test_how_the_audio_is_cut_does_not_matter(cuts: list[int], name: str) -> None:
    target = openai_format(name) if name in ("wav", "flac") else elevenlabs_format(name)
    samples, made = tone()[: sum(cuts)], []
    for pieces in (cuts, [sum(cuts)]):
        encoder, data, begin = Encoder(target), b"", 0
        for length in pieces:
            data += encoder.feed(samples[begin : begin + length])
            begin += length
        made.append(data + encoder.finish())
    assert made[0] == made[1]


@pytest.mark.parametrize("source", [16000, 24000, 48000])
def test_audio_of_any_rate_lasts_as_long_in_the_clients_format(source: int) -> None:
    encoder = Encoder(OutputFormat(), sample_rate=source)
    made = np.frombuffer(encoder.feed(np.zeros(source, np.float32)) + encoder.finish(), "<i2")
    assert abs(len(made) - 24000) <= 16


@pytest.mark.parametrize("inside", sorted(WAV))
def test_a_wav_file_holds_every_raw_encoding(inside: str) -> None:
    target = cartesia_format({"container": "wav", "encoding": inside, "sample_rate": 16000})
    encoder = Encoder(target)
    decoded = decode_recording(encoder.feed(tone()) + encoder.finish(), 0.5, 30.0)
    assert abs(len(decoded) - 16000 * SECONDS) <= 16 and 0.25 < np.abs(decoded).max() < 0.35


@given(st.floats(0, 2))
def test_a_gain_scales_and_clips(gain: float) -> None:
    samples = np.linspace(-1, 1, 101, dtype=np.float32)
    made = np.frombuffer(Encoder(OutputFormat(), gain).feed(samples), "<i2")
    assert np.abs(made - np.rint(np.clip(samples * np.float32(gain), -1, 1) * 32767)).max() == 0


def test_an_encoder_without_audio_ends_well() -> None:
    for name in ("pcm", "wav", "mp3", "opus", "aac", "flac"):
        Encoder(openai_format(name)).finish()


@pytest.mark.parametrize("name", ["mp3", "opus", "flac", "wav", "aac"])
def test_uploads_in_every_common_format_become_16_khz(name: str) -> None:
    encoder = Encoder(openai_format(name))
    decoded = decode_recording(encoder.feed(tone()) + encoder.finish(), 0.5, 30.0)
    assert decoded.dtype == np.float32 and abs(len(decoded) / 16000 - SECONDS) < 0.1
    assert 0.2 < np.abs(decoded).max() <= 1.0


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        decode_recording(data, 0.5, 30.0)


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.mp3\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"<?xml version='1.0'?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>",
        b"RIFF\xff\xff\xff\xffWAVEfmt \x10\x00\x00\x00\x01\x00\xff\xff\x00\x00\x00\x00",
        zlib.compress(b"\0" * 1_000_000),
    ],
)
def test_playlists_and_damaged_headers_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        decode_recording(data, 0.5, 30.0)


def test_a_decompression_bomb_is_left_when_it_is_too_long() -> None:
    encoder = Encoder(openai_format("flac"))
    silence = np.zeros(24000 * 60, np.float32)
    bomb = encoder.feed(silence) + encoder.finish()
    with pytest.raises(InvalidInputError, match="longer than 30 s"):
        decode_recording(bomb, 0.5, 30.0)


def test_the_formats_of_deepgram_and_dashscope() -> None:
    assert deepgram_format("linear16", "") == OutputFormat("pcm_s16le", 24000)
    assert deepgram_format("mulaw", "8000") == OutputFormat("pcm_mulaw", 8000)
    assert dashscope_format("Default", 0, None) == OutputFormat("mp3", 22050)
    for wrong in (("mp3", ""), ("linear16", "fast"), ("linear16", "96000"), ("linear16", "-1")):
        with pytest.raises(InvalidInputError):
            deepgram_format(*wrong)
    with pytest.raises(InvalidInputError):
        dashscope_format("ogg", 24000, None)


@pytest.mark.parametrize("codec", ["opus", "mp3", "aac", "flac", "wav"])
@pytest.mark.parametrize(("sample_rate", "bit_rate"), [(8_000, None), (8_000, 8_000), (22_050, 256_000), (48_000, 8_000)])
def test_what_is_accepted_can_be_made(codec: str, sample_rate: int, bit_rate: int | None) -> None:
    try:
        target = checked(codec, sample_rate, bit_rate)
    except InvalidInputError:
        return
    encoder = Encoder(target)
    assert encoder.feed(tone()) + encoder.finish()
    encoder.close()

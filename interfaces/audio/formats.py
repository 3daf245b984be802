"""Names of audio formats, as each protocol writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bistream.errors import InvalidInputError

DEFAULT_RATE = 24_000  # where a protocol lets its client name none
TELEPHONY_RATE = 8_000
MIN_RATE, MAX_RATE = 8_000, 48_000
RAW = ("pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw")
WAV = {"pcm_s16le": "wav", "pcm_f32le": "wav_f32le", "pcm_mulaw": "wav_mulaw", "pcm_alaw": "wav_alaw"}  # by what is inside
MOST_OPUS_BITS = 256_000  # of one channel: libopus refuses more
AAC_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_MIME = {
    **dict.fromkeys(WAV.values(), "audio/wav"),
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "pcm_s16le": "audio/pcm",
    "pcm_f32le": "audio/pcm",
    "pcm_mulaw": "audio/basic",
    "pcm_alaw": "audio/x-alaw-basic",
}


@dataclass(frozen=True)
class OutputFormat:
    """codec: one of ``RAW`` or ``WAV``, or mp3, opus (Ogg), aac (ADTS), flac. bit_rate: bit/s, None for the default."""

    codec: str = "pcm_s16le"
    sample_rate: int = DEFAULT_RATE
    bit_rate: int | None = None

    @property
    def content_type(self) -> str:
        return _MIME[self.codec]


def openai_format(name: str) -> OutputFormat:
    """``response_format``, at its usual rate; the names of telephony are those of OpenAI's realtime API. Raises ``InvalidInputError``."""
    telephony = {"g711_ulaw": "pcm_mulaw", "g711_alaw": "pcm_alaw"}
    codecs = {"pcm": "pcm_s16le", **{one: one for one in ("mp3", "opus", "aac", "flac", "wav")}, **telephony}
    if name not in codecs:
        raise InvalidInputError(f"response_format is {name[:32]!r}; set it to mp3, opus, aac, flac, wav, pcm, g711_ulaw or g711_alaw.")
    return OutputFormat(codecs[name], TELEPHONY_RATE if name in telephony else DEFAULT_RATE)


def elevenlabs_format(name: str) -> OutputFormat:
    """``output_format``: ``pcm_24000``, ``mp3_22050_32``, ``opus_48000_64``, ``ulaw_8000``, ``alaw_8000``. Raises ``InvalidInputError``."""
    codecs = {"pcm": "pcm_s16le", "mp3": "mp3", "opus": "opus", "ulaw": "pcm_mulaw", "alaw": "pcm_alaw", "wav": "wav"}
    match = re.fullmatch(r"(pcm|mp3|opus|ulaw|alaw|wav)_(\d{4,5})(?:_(\d{1,3}))?", name)
    if match is None:
        raise InvalidInputError(
            f"output_format is {name[:32]!r}; set it to one such as pcm_24000, mp3_22050_32, opus_48000_64 or ulaw_8000."
        )
    return checked(codecs[match[1]], int(match[2]), int(match[3]) * 1000 if match[3] else None)


def deepgram_format(encoding: str, sample_rate: str) -> OutputFormat:
    """``encoding`` and ``sample_rate`` of the address of a WebSocket. Raises ``InvalidInputError``."""
    codec = _DEEPGRAM_RAW.get(encoding)
    if codec is None:
        raise InvalidInputError(f"encoding is {encoding[:32]!r}; set it to linear16, mulaw or alaw.")
    return checked(codec, _whole("sample_rate", sample_rate) or _DEEPGRAM_RATES[codec], None)


def deepgram_file_format(encoding: str, container: str, sample_rate: str, bit_rate: str) -> OutputFormat:
    """Of the address of a request: raw encodings are in a WAV file unless ``container`` is none. Raises ``InvalidInputError``."""
    codec = _DEEPGRAM_RAW.get(encoding, encoding)
    if codec not in _DEEPGRAM_RATES:
        raise InvalidInputError(f"encoding is {encoding[:32]!r}; set it to linear16, mulaw, alaw, mp3, opus, flac or aac.")
    if container not in ("", "none", "wav", "ogg") or (container == "wav" and codec not in WAV) or (container == "ogg" and codec != "opus"):
        raise InvalidInputError(f"container is {container[:32]!r}, which this encoding does not have; leave it out, or set it to none.")
    rate, bits = _whole("sample_rate", sample_rate) or _DEEPGRAM_RATES[codec], _whole("bit_rate", bit_rate)
    is_file = codec in WAV and container != "none"
    return checked(WAV[codec] if is_file else codec, rate, bits if codec in _WITH_BIT_RATE else None)


_DEEPGRAM_RAW = {"linear16": "pcm_s16le", "mulaw": "pcm_mulaw", "alaw": "pcm_alaw"}
_DEEPGRAM_RATES = {  # where the address names none
    "pcm_s16le": DEFAULT_RATE,
    "pcm_mulaw": TELEPHONY_RATE,
    "pcm_alaw": TELEPHONY_RATE,
    "mp3": 22_050,
    "opus": 48_000,
    "flac": 24_000,
    "aac": 22_050,
}
_WITH_BIT_RATE = ("mp3", "opus", "aac")


def _whole(name: str, value: str) -> int | None:
    """None for an empty value. Raises ``InvalidInputError``. Clients send numbers of either kind, 24000 and 24000.0."""
    if not value:
        return None
    match = re.fullmatch(r"(\d{1,7})(?:\.0*)?", value)
    if match is None:
        raise InvalidInputError(f"{name} must be a whole number of at most seven digits; correct it.")
    return int(match[1])


def cartesia_format(values: Mapping[str, Any], is_raw: bool = False) -> OutputFormat:
    """``output_format``: container (raw, wav, mp3), encoding, sample_rate, bit_rate. is_raw: nothing else. Raises ``InvalidInputError``."""
    given = {name: value for name, value in values.items() if value is not None}
    container, encoding = given.get("container", "raw"), given.get("encoding", "pcm_s16le")
    rate, bit_rate = given.get("sample_rate", DEFAULT_RATE), given.get("bit_rate")
    if container not in (("raw",) if is_raw else ("raw", "wav", "mp3")):
        raise InvalidInputError(f"output_format.container must be raw{'' if is_raw else ', wav or mp3'}; correct it.")
    if container != "mp3" and (not isinstance(encoding, str) or encoding not in RAW):
        raise InvalidInputError(f"output_format.encoding must be one of {', '.join(RAW)}; correct it.")
    if not _is_whole(rate) or not (bit_rate is None or _is_whole(bit_rate)):
        raise InvalidInputError("sample_rate and bit_rate of output_format must be whole numbers; correct them.")
    if container == "mp3":
        return checked("mp3", rate, bit_rate)
    return checked(encoding if container == "raw" else WAV[encoding], rate, None)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def dashscope_format(name: str, sample_rate: int, kbit: int | None) -> OutputFormat:
    """``format`` and ``sample_rate`` of run-task. ``Default`` with 0 Hz is mp3 at 22,050 Hz. Raises ``InvalidInputError``."""
    codecs = {"pcm": "pcm_s16le", "wav": "wav", "mp3": "mp3", "opus": "opus", "default": "mp3", "": "mp3"}
    codec = codecs.get(name.lower())
    if codec is None:
        raise InvalidInputError(f"format is {name[:32]!r}; set it to pcm, wav, mp3 or opus.")
    default = 48_000 if codec == "opus" else 22_050
    return checked(codec, sample_rate or default, kbit * 1000 if kbit else None)


def checked(codec: str, sample_rate: int, bit_rate: int | None) -> OutputFormat:
    """Raises ``InvalidInputError`` for a rate that the codec does not have."""
    rates = {"opus": OPUS_RATES, "mp3": MP3_RATES, "aac": AAC_RATES}.get(codec)
    if rates is not None and sample_rate not in rates:
        raise InvalidInputError(f"The sample rate {sample_rate} is not one of {codec}'s; set it to one of {', '.join(map(str, rates))}.")
    if not MIN_RATE <= sample_rate <= MAX_RATE:
        raise InvalidInputError(f"The sample rate is {sample_rate}; set it between {MIN_RATE} and {MAX_RATE}.")
    most = MOST_OPUS_BITS if codec == "opus" else 512_000
    if bit_rate is not None and not 8_000 <= bit_rate <= most:
        raise InvalidInputError(f"The bit rate is {bit_rate / 1000:g} kbit/s; set it between 8 and {most // 1000}.")
    return OutputFormat(codec, sample_rate, bit_rate)

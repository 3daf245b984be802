"""What a session needs of token2wav from now on, from where it stands. Pure; ``load.py`` adds the needs up."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.families.audio_format import AudioFormat
from bistream.sessions.admission import SessionStart
from bistream.sessions.load import Lengths, Need, promised_rate
from bistream.token2wav.load_report import LoadReport

UNKNOWN_VOICE_PAGES = 10  # of a registered voice that has not been read
COMPARED_SAMPLES = 64  # of two recordings with the same length and transcript
LEAST_RESERVED_S = 4.0  # the longest hop: a short text can become longer speech than expected


@dataclass(frozen=True)
class SessionLoad:
    """One live session.

    age_s: since its start. buffer_s: audio ahead of its listener. made_s: audio that was sent. received_s: speech of the tokens that came.
    tokens_ended, text_ended: no more will come. hop_waits: token2wav has a hop of it. voice_tokens: None until the voice is ready.
    reserved_s: speech for which token2wav reserves flow state, as it was when the session was admitted; None: as much as usual.
    """

    age_s: float = 0.0
    buffer_s: float = 0.0
    made_s: float = 0.0
    received_s: float = 0.0
    tokens_ended: bool = False
    text_ended: bool = False
    hop_waits: bool = False
    has_ended: bool = False
    voice_tokens: int | None = None
    reserved_s: float | None = None


def text_bytes(start: SessionStart) -> int | None:
    """Bytes of the whole text; None: more may come."""
    return len(start.text) if start.is_end else None


def reserved_speech_s(start: SessionStart, lengths: Lengths) -> float:
    """Speech for which a session that starts now is sure of flow state; token2wav reserves its usual amount at most."""
    if start.source_wav is not None:
        return len(start.source_wav) / REFERENCE_SAMPLE_RATE
    return max(LEAST_RESERVED_S, lengths.expected_s(text_bytes(start)))


def need_of(start: SessionStart, standing: SessionLoad, report: LoadReport, lengths: Lengths, audio_format: AudioFormat) -> Need:
    """Offline sessions have no listener and no flow state; one that has ended gives everything back at once."""
    if start.offline or standing.has_ended:
        return Need(0.0)
    waits_for_server = standing.hop_waits or (standing.text_ended and not standing.tokens_ended)
    rest_s = max(0.0, standing.received_s - standing.made_s) if standing.tokens_ended else None
    return Need(
        rate=promised_rate(rest_s, standing.age_s if standing.made_s == 0.0 else None),
        pages=_pages(start, standing, report, lengths),
        reserved=_reserved_pages(standing, report),
        voice=_voice(start),
        voice_pages=_voice_pages(start, standing, audio_format),
        is_late=standing.made_s > 0.0 and standing.buffer_s <= 0.0 and waits_for_server,
    )


def _reserved_pages(standing: SessionLoad, report: LoadReport) -> int:
    """As token2wav reserves them. With bounded left context every session has the usual number, and never more."""
    if standing.reserved_s is None or report.most_pages == report.reserve_pages:
        return report.reserve_pages
    return min(report.reserve_pages, max(1, math.ceil(standing.reserved_s)))


def _pages(start: SessionStart, standing: SessionLoad, report: LoadReport, lengths: Lengths) -> float:
    if start.source_wav is not None:
        known = len(start.source_wav) / REFERENCE_SAMPLE_RATE
    else:
        known = standing.received_s if standing.tokens_ended else lengths.expected_s(text_bytes(start), standing.received_s)
    return min(report.most_pages or math.inf, max(_reserved_pages(standing, report), known))


def _voice(start: SessionStart) -> Hashable:
    """Equal for sessions that share the state of their voice. Of a recording a few samples are compared: all of it takes milliseconds."""
    if start.reference_wav is None:
        return start.reference_hash or start.speaker_id
    wav = start.reference_wav
    return len(wav), start.reference_text, wav[:: max(1, len(wav) // COMPARED_SAMPLES)].tobytes()


def _voice_pages(start: SessionStart, standing: SessionLoad, audio_format: AudioFormat) -> int:
    if standing.voice_tokens is not None:
        return standing.voice_tokens // audio_format.chunk_tokens
    if start.voice is not None:
        return len(start.voice.speech_tokens) // audio_format.chunk_tokens
    if start.reference_wav is None:
        return UNKNOWN_VOICE_PAGES
    return int(len(start.reference_wav) / REFERENCE_SAMPLE_RATE * audio_format.tokens_per_second) // audio_format.chunk_tokens

"""What all sessions share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property

from bistream.config import RuntimeConfig
from bistream.families.audio_format import AudioFormat
from bistream.families.family import Family
from bistream.hops.policy import HopPolicy
from bistream.sessions.earlier_speech import EarlierSpeech
from bistream.sessions.event_loop import EventLoop
from bistream.sessions.ports import Ports
from bistream.sessions.session_record import SessionMetrics
from bistream.sessions.voices import Voices


@dataclass(frozen=True)
class Services:
    """helpers: threads for what takes milliseconds of a processor, such as hashing a recording."""

    config: RuntimeConfig
    ports: Ports
    voices: Voices
    family: Family
    hop_policy: HopPolicy
    loop: EventLoop
    helpers: Executor
    clock: Callable[[], float]
    metrics: SessionMetrics

    @cached_property
    def earlier(self) -> EarlierSpeech:
        return EarlierSpeech(self.clock)

    @property
    def audio_format(self) -> AudioFormat:
        return self.family.audio_format

"""The core as every protocol sees it: ``open`` an utterance, voices, limits, readiness, drain."""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections import Counter
from dataclasses import dataclass, field

from bistream.errors import BistreamError, ShuttingDownError, UnknownSpeakerError
from interfaces.core.caller import Caller
from interfaces.core.earlier import EarlierUtterances
from interfaces.core.errors import NO_SERVER, UnreachableError
from interfaces.core.lexicons import Lexicons
from interfaces.core.quiet_log import Lines, QuietLog
from interfaces.core.record import Ending, SpeechRecord, log_line
from interfaces.core.servers import Servers
from interfaces.core.shares import Places, ShareError, Starts
from interfaces.core.speech import Speech, SpeechOptions
from interfaces.core.values import Values, check_values
from interfaces.core.voice import Voice
from interfaces.core.voices import VoiceStore
from interfaces.settings import MARKDOWN, InterfaceLimits

logger = logging.getLogger("interfaces")

DRAIN_RETRY_AFTER_S = 5
LINES_WITHOUT_AUDIO = 10  # of one client in ten seconds: utterances that were refused, or ended before their audio, cost next to nothing
NOT_INSTRUCTED = "The voice takes no instructions; they had no effect."
FIRST_AUDIO_BUCKETS_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


@dataclass
class Counts:
    """Since the start, for the metrics."""

    speeches: int = 0
    endings: Counter[Ending] = field(default_factory=Counter)
    audio_s: float = 0.0
    characters: int = 0
    first_audio: list[int] = field(default_factory=lambda: [0] * (len(FIRST_AUDIO_BUCKETS_S) + 1))  # the last: beyond all of them
    first_audio_s: float = 0.0  # the sum

    def add(self, record: SpeechRecord, characters: int) -> None:
        """An utterance is over."""
        assert record.ending is not None, "an utterance that is over has ended in some way"
        self.endings[record.ending] += 1
        self.characters += characters
        if (waited_s := record.first_audio_s) is not None:
            self.first_audio[bisect.bisect_left(FIRST_AUDIO_BUCKETS_S, waited_s)] += 1
            self.first_audio_s += waited_s

    @property
    def refused(self) -> int:
        return self.endings[Ending.REFUSED]

    @property
    def failed(self) -> int:
        return sum(self.endings[ending] for ending in (Ending.FAILED, Ending.CUT_OFF, Ending.TIMED_OUT, Ending.DRAINED))

    @property
    def cancelled(self) -> int:
        return self.endings[Ending.CANCELLED] + self.endings[Ending.LEFT]


class SpeechService:
    def __init__(
        self,
        servers: Servers,
        voices: VoiceStore,
        limits: InterfaceLimits,
        speak_after_s: float = 0.0,
        text_normalization: str = MARKDOWN,
        lexicons: Lexicons | None = None,
    ) -> None:
        self.servers = servers
        voices.follow(lambda: servers.voices)
        self.voices = voices
        self.limits = limits
        self.speak_after_s = speak_after_s
        self.text_normalization = text_normalization  # of utterances that do not say it
        self.lexicons = lexicons or Lexicons()
        self.counts = Counts()
        self.drains = asyncio.Event()
        self.starts = Starts(limits.starts_per_second)
        self.log = QuietLog(logger)
        self._lines = Lines(LINES_WITHOUT_AUDIO)
        self._open: set[Speech] = set()
        self._earlier = EarlierUtterances()
        self._places = Places("utterances", limits.max_speeches, limits.share)
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    @property
    def open_speeches(self) -> int:
        return len(self._open)

    def is_ready(self) -> bool:
        return not self.drains.is_set() and self.servers.any_ready()

    def check_serving(self) -> None:
        """Raises ``ShuttingDownError`` in a drain."""
        if self.drains.is_set():
            raise ShuttingDownError("The gateway is shutting down and takes no new requests; connect to another one.")

    def open(self, voice: str, caller: Caller, values: Values | None = None) -> Speech:
        """voice: a name, empty for the default. values: as ``SpeechOptions``; ``continues`` is a name of ``EarlierUtterances.find``, and no
        utterance of this caller is as none.

        Raises ``BistreamError``: draining, a limit, an unknown voice, a value out of range.
        """
        try:
            self.check_serving()
            self.starts.take(caller.holders)
            values = self.lexicons.of_key({"text_normalization": self.text_normalization, **(values or {})}, caller.key)
            check_values(values, self.servers.max_text_chars)
            found = self.find_voice(voice, caller)
            self._places.take(caller.holders)
        except BistreamError as error:
            self.tell(error, caller)
            refused = SpeechRecord()
            refused.fail(error)
            self._ended(refused, caller, 0)
            raise
        known = dict(values)
        if not self.servers.can_be_instructed:  # a client that was made for another speech service speaks all the same
            known.pop("instruct_text", None)
        earlier = self._earlier.find(caller, str(known.pop("continues", "")))
        options = SpeechOptions(known, self.speak_after_s, earlier)
        speech = Speech(self.servers, found, options, self.limits.max_text_chars, lambda: self._closed(speech, caller), caller.trace)
        self._open.add(speech)
        self._all_closed.clear()
        self.counts.speeches += 1
        return speech

    def find_voice(self, name: str, caller: Caller) -> Voice:
        """As ``VoiceStore.find``. Raises ``UnreachableError`` for a voice that may be one of the servers' where none has answered."""
        try:
            return self.voices.find(name, caller.key)
        except UnknownSpeakerError:
            if self.servers.have_failed():
                raise UnreachableError(NO_SERVER) from None
            raise

    def tell(self, error: BistreamError, caller: Caller) -> None:
        """The log says who takes more than its share."""
        if isinstance(error, ShareError):
            self.log.warn(caller.address, error.sentence)

    def _ended(self, record: SpeechRecord, caller: Caller, characters: int) -> None:
        """The one place where an ending is counted and written down, whatever it is."""
        self.counts.add(record, characters)
        left_out = 0 if record.audio_s else self._lines.take(caller.address)
        if left_out is not None:
            log_line(record, caller.trace, characters, left_out)

    def _closed(self, speech: Speech, caller: Caller) -> None:
        self._open.discard(speech)
        self._places.give_back(caller.holders)
        if speech.spoken is not None:
            self._earlier.add(caller, speech.text_end, speech.spoken)
        self._ended(speech.record, caller, speech.characters)
        if not self._open:
            self._all_closed.set()

    async def drain(self, timeout_s: float) -> None:
        """Takes nothing new, and returns when all utterances are over; those that are left after ``timeout_s`` are ended."""
        self.drains.set()
        try:
            await asyncio.wait_for(self._all_closed.wait(), timeout_s)
        except TimeoutError:
            for speech in self._open:
                speech.record.end(Ending.DRAINED, ShuttingDownError.code)
            await asyncio.gather(*(speech.close() for speech in list(self._open)))

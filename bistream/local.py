"""The whole pipeline in one process, without a server: ports that call the stages directly, and the same orchestrator as on Triton.

A text and a voice go in, a waveform or a stream of audio chunks comes out. Called by the inference scripts and by tests.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace

import numpy as np

from bistream.checkpoints.files import family_of
from bistream.config import RuntimeConfig
from bistream.contract.codec import flat_values, to_bytes
from bistream.errors import BistreamError, CancelledError, UnknownSessionError
from bistream.metrics.stage_times import StageTimes
from bistream.sessions.orchestrator import Orchestrator
from bistream.sessions.ports import BistreamRequest, Ports
from bistream.text2token.one_table.prompts import Labels
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.token2mel.state_budget import unshared_session_s
from bistream.token2wav.factory import load_renderer
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.service import Token2Wav, Token2WavHop
from bistream.types import (
    AudioChunk,
    AudioOptions,
    FloatArray,
    GenerationOptions,
    IntArray,
    SpeakerFeatures,
    SpeechTokens,
    TokenDemand,
    VoicePrompt,
)
from bistream.voice.factory import load_speakers, load_tokenizer

DEFAULT_OPTIONS = GenerationOptions()


@dataclass(frozen=True)
class VoiceChoice:
    """A recording (float32 [N], 16 kHz mono) with its transcript, the id of a registered voice, labels, or nothing: the default speaker.

    is_cross_lingual: leave the transcript aside, as for a recording without one.
    """

    reference_wav: FloatArray | None = None
    reference_text: str | None = None
    speaker_id: str | None = None
    gender: str | None = None
    pitch: str | None = None
    speaking_rate: str | None = None
    is_cross_lingual: bool = False


class LocalVoice:
    """``ports.VoicePort``. language_model: where voices are made of labels."""

    def __init__(self, config: RuntimeConfig, times: StageTimes, language_model: SpeechTokenService | None = None) -> None:
        self._tokenizer = load_tokenizer(config)
        self._encoder = load_speakers(config)
        self._times, self._language_model = times, language_model

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        with self._times.measure("voice"):
            return self._tokenizer.tokens_of([reference_wav])[0]

    def speaker_features(self, reference_wav: FloatArray) -> SpeakerFeatures:
        with self._times.measure("voice"):
            return self._encoder.features_of([reference_wav])[0]

    def speaker_of_labels(self, labels: Labels, seed: int) -> IntArray:
        assert self._language_model is not None, "made with one"
        with self._times.measure("voice"):
            return np.array(self._language_model.voices.make(labels, seed).numbers, np.int32)


class LocalLanguageModel:
    """``ports.LanguageModelPort``. Its time is the time spent waiting for tokens, pauses of the text included."""

    def __init__(self, config: RuntimeConfig, times: StageTimes) -> None:
        self.service = SpeechTokenService(config)
        self._times = times
        self._messages: dict[str, asyncio.Queue[SpeechTokens | BistreamError]] = {}  # by session

    async def start(self, start: LanguageModelStart) -> None:
        loop, messages = asyncio.get_running_loop(), asyncio.Queue[SpeechTokens | BistreamError]()

        def sink(message: SpeechTokens | BistreamError) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(messages.put_nowait, message)

        self.service.start(start, sink)
        self._messages[start.session_id] = messages

    async def take(self, session_id: str, demand: TokenDemand) -> SpeechTokens:
        with self._times.measure("language_model"):
            message = await self._messages[session_id].get()
        if isinstance(message, BistreamError):
            raise message.renewed(message.session_id)
        if message.is_final:
            del self._messages[session_id]
        return message

    async def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        self.service.append(session_id, text, is_end)

    async def cancel(self, session_id: str) -> None:
        with suppress(UnknownSessionError, CancelledError):  # it has ended
            self.service.cancel(session_id)
        self._messages.pop(session_id, None)

    def close(self) -> None:
        self.service.close()


class LocalToken2Wav:
    """``ports.Token2WavPort``."""

    def __init__(self, config: RuntimeConfig, times: StageTimes) -> None:
        self._service = Token2Wav(config, renderer=load_renderer(config, unshared_session_s(config.max_sessions, config.flow_context_s)))
        self._times = times

    async def hop(self, hop: Token2WavHop) -> FloatArray:
        with self._times.measure("token2wav"):
            return await asyncio.wrap_future(self._service.hop(hop))

    async def synthesize(
        self, token_ids: Sequence[int], prompt: VoicePrompt, audio: AudioOptions, speed: float, session_id: str
    ) -> FloatArray:
        with self._times.measure("token2wav"):
            return await asyncio.wrap_future(self._service.synthesize(token_ids, prompt, audio, speed, session_id))

    async def cancel(self, session_id: str) -> None:
        self._service.cancel(session_id)

    def report(self) -> LoadReport | None:
        return self._service.report()

    def close(self) -> None:
        self._service.close()


class QueueSender:
    """``ports.AudioSender`` of a caller in the same process: chunks, then None or the error."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[AudioChunk | BistreamError | None] = queue.SimpleQueue()

    async def send(self, chunk: AudioChunk) -> None:
        self.events.put(chunk)

    def report(self, heard: AudioChunk) -> None:
        self.events.put(heard)

    def finish(self, error: BistreamError | None) -> None:
        self.events.put(error)

    def is_cancelled(self) -> bool:
        return False

    def __iter__(self) -> Iterator[AudioChunk]:
        """Until the session has ended. Raises its ``BistreamError``."""
        while (event := self.events.get()) is not None:
            if isinstance(event, BistreamError):
                raise event.renewed(event.session_id)
            yield event


class LocalPipeline(AbstractContextManager["LocalPipeline"]):
    """Owns all models of ``config.model_dir``. Thread-safe; ``close`` it, or use it as a context manager."""

    def __init__(self, config: RuntimeConfig) -> None:
        """Raises ``ConfigError`` and ``CheckpointError``."""
        self.times = StageTimes()
        self.sample_rate = family_of(config.model_dir).audio_format.sample_rate  # of all audio
        with ExitStack() as stack:  # closes the parts loaded so far when a later one fails to load
            self._language_model = LocalLanguageModel(config, self.times)
            stack.callback(self._language_model.close)
            voice = LocalVoice(config, self.times, self._language_model.service)
            self._token2wav = LocalToken2Wav(config, self.times)
            stack.callback(self._token2wav.close)
            self._orchestrator = Orchestrator(config, Ports(voice, self._language_model, self._token2wav))
            stack.pop_all()

    def synthesize(self, text: str, voice: VoiceChoice, options: GenerationOptions = DEFAULT_OPTIONS, speed: float = 1.0) -> FloatArray:
        """The whole text at once, offline: float32 [N], mono. Raises ``BistreamError``."""
        sender = QueueSender()
        self._orchestrator.handle(_start(text.encode("utf-8"), None, True, voice, options, speed=speed, offline=True), sender)
        waveforms = [chunk.waveform for chunk in sender]
        return np.concatenate(waveforms) if waveforms else np.zeros(0, np.float32)

    def stream(
        self,
        pieces: Iterable[str | bytes],
        voice: VoiceChoice,
        options: GenerationOptions = DEFAULT_OPTIONS,
        is_whole: bool = False,
        speed: float = 1.0,
        session_id: str | None = None,
    ) -> Iterator[AudioChunk]:
        """One bidirectional session: a separate thread consumes the pieces as they come, and audio is yielded as it is produced.

        is_whole: the pieces are the whole text and go in as one request, which uses the uni-stream layout. Leaving the iteration
        early cancels the session. session_id: for ``options.continues`` of a later one. Raises ``BistreamError``, and what ``pieces`` does.
        """
        if is_whole:
            whole = b"".join(map(to_bytes, pieces))
            return self._stream(_start(whole, session_id, True, voice, options, speed), ())
        return self._stream(_start(b"", session_id, False, voice, options, speed), pieces)

    def convert(
        self,
        source_wav: FloatArray,
        voice: VoiceChoice,
        options: GenerationOptions = DEFAULT_OPTIONS,
        speed: float = 1.0,
        offline: bool = False,
    ) -> Iterator[AudioChunk]:
        """The words of a recording (float32 [N], 16 kHz mono) in another voice; offline: computed as a whole. Raises ``BistreamError``."""
        start = _start(b"", None, True, voice, options, speed=speed, offline=offline)
        return self._stream(replace(start, source_wav=source_wav), ())

    def _stream(self, start: BistreamRequest, pieces: Iterable[str | bytes]) -> Iterator[AudioChunk]:
        sender = QueueSender()
        session_id = start.session_id or uuid.uuid4().hex
        feeder = _Feeder(self._orchestrator, session_id, pieces)
        self._orchestrator.handle(replace(start, session_id=session_id), sender)
        if not start.is_end:
            feeder.start()
        try:
            yield from sender
        except BistreamError as error:
            raise (feeder.error or error) from None
        except BaseException:  # the iteration is left; a session that is over is not cancelled: another one may have its id
            feeder.cancel()
            raise
        finally:
            feeder.stopped.set()

    def close(self) -> None:
        """Close the orchestrator first: that ends the sessions in the stages. Idempotent."""
        self._orchestrator.close()
        self._language_model.close()
        self._token2wav.close()

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Feeder:
    """Feeds the pieces of a text to a session from a separate thread, because waiting for a piece must not delay the audio."""

    def __init__(self, orchestrator: Orchestrator, session_id: str, pieces: Iterable[str | bytes]) -> None:
        self.error: BaseException | None = None  # why the session was cancelled
        self._orchestrator = orchestrator
        self._session_id = session_id
        self._pieces = pieces
        self.stopped = threading.Event()  # a thread that waits for a piece ends with the next one

    def start(self) -> None:
        threading.Thread(target=self._run, name="bistream-feed", daemon=True).start()

    def cancel(self) -> None:
        """The session: its audio is not read further, or its text does not come."""
        self._orchestrator.handle(BistreamRequest(session_id=self._session_id, is_cancel=True), QueueSender())

    def _run(self) -> None:
        try:
            for piece in self._pieces:
                if self.stopped.is_set():
                    return
                self._append(to_bytes(piece), is_end=False)
            self._append(b"", is_end=True)
        except UnknownSessionError:
            pass  # the session has ended; its own error says why
        except BaseException as error:
            self.error = error
            self.cancel()

    def _append(self, piece: bytes, is_end: bool) -> None:
        answer = QueueSender()
        self._orchestrator.handle(BistreamRequest(target_text=piece, session_id=self._session_id, is_start=False, is_end=is_end), answer)
        for _ in answer:
            raise AssertionError("an append has no audio")


def _start(
    text: bytes, session_id: str | None, is_end: bool, voice: VoiceChoice, options: GenerationOptions, speed: float, offline: bool = False
) -> BistreamRequest:
    return BistreamRequest(
        target_text=text, session_id=session_id, is_end=is_end, options=options, speed=speed, is_offline=offline, **flat_values(voice)
    )

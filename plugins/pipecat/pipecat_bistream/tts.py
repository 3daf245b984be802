"""The framework's text-to-speech service: an utterance for each of its audio contexts, that is for each turn."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

from pipecat.audio.utils import create_stream_resampler
from pipecat.frames.frames import CancelFrame, EndFrame, Frame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService

from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.audio import pcm16
from bistream.client.connection import API_KEY_VARIABLE, ClientSecurity
from bistream.client.speaker import Speaker
from bistream.client.spoken_words import SpokenWord, SpokenWords
from bistream.client.utterance import Pacing, Utterance
from bistream.errors import BistreamError
from pipecat_bistream.failures import category

RETRY_WAITS_S = (0.1, 1.0, 2.0)  # three attempts more, as the framework's own services connect again
ANSWER_TIMEOUT_S = 10.0


@dataclass
class _Turn:
    """has_failed: nothing more is spoken; the audio context stays open until the framework ends the turn, because its next piece would
    open it again. words: with their times since the first audio, for a listener who hears all as soon as it comes."""

    utterance: Utterance
    words: SpokenWords = field(default_factory=SpokenWords)
    has_failed: bool = False
    is_flushed: bool = False
    began_at: float | None = None
    spoken_s: float = 0.0

    def play(self, duration_s: float) -> float:
        """When audio that has just come begins, after a pause later than the audio before it ends."""
        now = time.monotonic()
        if self.began_at is None:
            self.began_at = now
        begin_s = max(self.spoken_s, now - self.began_at)
        self.spoken_s = begin_s + duration_s
        return begin_s


class BistreamTTSService(TTSService):
    """Speaks through a bistream server over gRPC, token by token."""

    def __init__(
        self,
        address: str,
        speaker: Speaker,
        *,
        security: ClientSecurity | None = None,
        speak_after_s: float = 2.0,
        tells_estimates: bool = True,
        continues_turns: bool = True,
        longest_pause_s: float = 60.0,
        text_aggregation_mode: TextAggregationMode = TextAggregationMode.TOKEN,
        **options: Any,
    ) -> None:
        """address: of the server's gRPC port. security: API key and TLS; without it the key of the variable BISTREAM_API_KEY.
        speak_after_s: a pause of the language model after which what it has written is spoken to its end; 0: never.
        tells_estimates: words count as spoken where the voice is estimated to be; else where it certainly is, which is later.
        continues_turns: a turn goes on with the melody of the one before, as long as that is less than a minute old.
        longest_pause_s: of the language model within a turn; the framework takes a longer one for the end of the turn.
        options: of ``TTSService``, such as ``sample_rate``.
        """
        client = AsyncBistreamClient(
            address, security=security or ClientSecurity(os.environ.get(API_KEY_VARIABLE) or None), keeps_channel=True
        )
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,
            push_text_frames=False,  # words come with their times instead
            push_start_frame=True,
            stop_frame_timeout_s=longest_pause_s,
            append_trailing_space=True,  # between sentences, where they are pieces
            settings=TTSSettings(model=client.model_name, voice=speaker.speaker_id, language=None),
            **options,
        )
        self._client = client
        self._speaker = speaker
        self._pacing = Pacing(speak_after_s=speak_after_s, answer_timeout_s=ANSWER_TIMEOUT_S, retry_waits_s=RETRY_WAITS_S)
        self._tells_estimates = tells_estimates
        self._continues_turns = continues_turns
        self._spoken: str | None = None  # the session that spoke last
        self._turns: dict[str, _Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def can_generate_metrics(self) -> bool:
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """Audio comes on its own, not while a piece is taken."""
        return False

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """One piece of a turn; its audio comes later."""
        turn = self._turns.get(context_id)
        if turn is None:
            utterance = Utterance(self._client, self._speaker, self._pacing, self._spoken if self._continues_turns else None)
            turn = self._turns[context_id] = _Turn(utterance)
            self._begin(self._speak(context_id, turn))
        await self.start_tts_usage_metrics(text)
        if not turn.has_failed:
            await turn.utterance.push_text(text)
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        """The turn's text is complete."""
        if context_id is None:
            return
        turn = self._turns.get(context_id)
        if turn is not None:
            turn.is_flushed = True
            await turn.utterance.end_text()
        if (
            turn is None or turn.has_failed
        ):  # none: the framework gives no work to a service that it takes for unusable, but opens the context
            await self._end(context_id)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Without waiting for the server, whose answer the interruption of the pipeline must not wait for."""
        turn = self._turns.pop(context_id, None)
        if turn is not None:
            self._begin(turn.utterance.cancel())

    async def on_audio_context_completed(self, context_id: str) -> None:
        """Also where the framework has given up waiting for it."""
        await self.on_audio_context_interrupted(context_id)

    async def _speak(self, context_id: str, turn: _Turn) -> None:
        try:
            await self._play(context_id, turn)
            self._spoken = turn.utterance.spoken
        except (BistreamError, OSError) as error:
            if self._turns.get(context_id) is not turn:
                return  # interrupted
            turn.has_failed = True
            await self.push_error(str(error), exception=error, category=category(error))
        if self._turns.get(context_id) is turn and (turn.is_flushed or not turn.has_failed):
            await self._end(context_id)

    async def _play(self, context_id: str, turn: _Turn) -> None:
        resampler = create_stream_resampler()
        async for spoken in turn.utterance:
            if self._turns.get(context_id) is not turn:
                return
            sample_rate = await self._client.sample_rate()
            duration_s = spoken.waveform.size / sample_rate
            begin_s = turn.play(duration_s)
            audio = await resampler.resample(pcm16(spoken.waveform), sample_rate, self.sample_rate)
            if audio:
                await self.append_to_audio_context(context_id, TTSAudioRawFrame(audio, self.sample_rate, 1, context_id=context_id))
            position = spoken.text_position if self._tells_estimates else spoken.text_consumed
            turn.words.text = turn.utterance.text
            await self._tell(context_id, turn.words.push(position, duration_s, begin_s))
        turn.words.text = turn.utterance.text
        await self._tell(context_id, turn.words.finish())

    async def _tell(self, context_id: str, words: list[SpokenWord]) -> None:
        for word in words:
            await self.add_word_timestamps([(word.text.strip(), word.begin_s)], context_id, word.has_own_spaces)

    async def _end(self, context_id: str) -> None:
        """Of the turn, once its audio is in the framework's hands."""
        self._turns.pop(context_id, None)
        if self.audio_context_available(context_id):
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:  # type: ignore[override]  # as TTSService has it
        """A new voice holds from the next turn on."""
        changed = await super()._update_settings(delta)
        if "voice" in changed:
            cleared: dict[str, Any] = dict.fromkeys(("reference_wav", "reference_text", "gender", "pitch", "speaking_rate"))
            self._speaker = replace(self._speaker, speaker_id=str(self._settings.voice), **cleared)
        return changed

    async def stop(self, frame: EndFrame) -> None:
        """What has been written is spoken to its end."""
        for context_id in list(self._turns):
            await self.flush_audio(context_id)
        await super().stop(frame)
        await self._close()

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        await self._close()

    async def cleanup(self) -> None:
        await super().cleanup()  # type: ignore[no-untyped-call]
        await self._close()

    async def _close(self) -> None:
        for context_id in list(self._turns):
            await self.on_audio_context_interrupted(context_id)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    def _begin(self, work: Any) -> None:
        task = self.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

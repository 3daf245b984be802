"""One turn: the language model's pieces in as they are, audio and timed words out."""

from __future__ import annotations

import asyncio
from typing import Protocol

from livekit.agents import APIConnectOptions, tts, utils
from livekit.agents.types import TimedString
from livekit.plugins.bistream.failures import api_error

from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.audio import pcm16
from bistream.client.speaker import Speaker
from bistream.client.spoken_words import SpokenWord, SpokenWords
from bistream.client.utterance import Pacing, Utterance
from bistream.errors import BistreamError

FIRST_RETRY_WAIT_S = 0.1  # as in the framework, whose options say the later ones


class TurnOptions(Protocol):
    """What a turn takes from its ``TTS``, which has these."""

    client: AsyncBistreamClient
    speaker: Speaker
    speak_after_s: float
    tells_estimates: bool
    continues_turns: bool
    spoken: str | None

    @property
    def sample_rate(self) -> int: ...


class SynthesizeStream(tts.SynthesizeStream):
    """The framework repeats a turn of which nothing was heard; within a turn, what follows a pause is repeated by the same rules here."""

    def __init__(self, *, tts: tts.TTS[str], turn_options: TurnOptions, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, conn_options=conn_options)
        self._turn_options = turn_options
        self._speaker = turn_options.speaker

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        options, connection = self._turn_options, self._conn_options
        pacing = Pacing(
            speak_after_s=options.speak_after_s,
            answer_timeout_s=connection.timeout,
            retry_waits_s=(FIRST_RETRY_WAIT_S, *[connection.retry_interval] * connection.max_retry)[: connection.max_retry],
            retries_first=False,
        )
        utterance = Utterance(options.client, self._speaker, pacing, options.spoken if options.continues_turns else None)
        request_id = utils.shortuuid("bistream_")
        output_emitter.initialize(
            request_id=request_id, sample_rate=options.sample_rate, num_channels=1, mime_type="audio/pcm", stream=True
        )
        output_emitter.start_segment(segment_id=request_id)
        # In tasks of their own, so that an interruption, which cancels this one, can still tell the server.
        feeding = asyncio.create_task(self._feed(utterance))
        speaking = asyncio.create_task(self._speak(utterance, output_emitter))
        try:
            done, _ = await asyncio.wait([speaking, feeding], return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        except (BistreamError, OSError) as error:
            raise api_error(error) from error
        finally:
            options.spoken = utterance.spoken
            feeding.cancel()
            await utterance.cancel()
            await asyncio.gather(feeding, speaking, return_exceptions=True)

    async def _feed(self, utterance: Utterance) -> None:
        async for item in self._input_ch:
            if isinstance(item, str):
                self._mark_started()
                await utterance.push_text(item)
            else:
                await utterance.flush()
        await utterance.end_text()

    async def _speak(self, utterance: Utterance, output_emitter: tts.AudioEmitter) -> None:
        words = SpokenWords()
        async for spoken in utterance:
            words.text, duration_s = utterance.text, spoken.waveform.size / self._turn_options.sample_rate
            position = spoken.text_position if self._turn_options.tells_estimates else spoken.text_consumed
            # Before its audio, with whose first frame the framework passes it on.
            output_emitter.push_timed_transcript([_timed(word) for word in words.push(position, duration_s)])
            output_emitter.push(pcm16(spoken.waveform))
        words.text = utterance.text
        output_emitter.push_timed_transcript([_timed(word) for word in words.finish()])
        output_emitter.end_segment()


def _timed(word: SpokenWord) -> TimedString:
    return TimedString(word.text, start_time=word.begin_s, end_time=word.end_s)

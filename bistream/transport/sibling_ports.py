"""The orchestrator's ports in a server: its calls of the sibling models.

Those of sessions go through a channel to each model (``channel.py``), the analysis of a recording over BLS (``pb_utils.InferenceRequest``):
Triton batches them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np

from bistream.contract.codec import Arrays, Values, flat_values, input_arrays, input_values
from bistream.contract.fields import AUDIO_TOKENIZER, LLM_BISTREAM, SPEAKER_EMBEDDING, TOKEN2WAV, ModelContract
from bistream.contract.refusals import parse_error, shut_down
from bistream.errors import BistreamError, CancelledError, EngineError, ShuttingDownError, UnknownSessionError
from bistream.sessions.ports import Ports
from bistream.text2token.one_table.prompts import Labels
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.service import Token2WavHop
from bistream.transport.call_sockets import socket_path
from bistream.transport.channel import CallChannel
from bistream.types import (
    AudioOptions,
    FinishReason,
    FloatArray,
    IntArray,
    SpeakerFeatures,
    SpeechBreak,
    SpeechTokens,
    TokenDemand,
    VoicePrompt,
)

logger = logging.getLogger(__name__)

RELOAD_ATTEMPTS, RELOAD_WAIT_S = 16, 0.25  # 4 s: less than the end of a drain waits for its sessions


def prompt_values(prompt: VoicePrompt) -> dict[str, Any]:
    """A voice without a recording is its embedding; a family without a mel has none."""
    return {
        "prompt_spk_embedding": prompt.speaker_embedding,
        "prompt_speech_tokens": prompt.speech_tokens,
        "prompt_speech_feat": prompt.speech_feat if prompt.speech_feat.size else None,
    }


def open_channel(contract: ModelContract) -> CallChannel:
    """To a model of this server."""
    return CallChannel(socket_path(contract.name), contract.name)


class SiblingVoice:
    """``ports.VoicePort``. A model that is not loaded at the moment is waited for: the keeper reloads a model whose process has died."""

    def __init__(self, pb_utils: Any, pause: Callable[[float], None] = time.sleep) -> None:
        self._pb_utils = pb_utils
        self._pause = pause

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        values = {"reference_wav": reference_wav, "reference_wav_len": len(reference_wav)}
        tokens: IntArray = self._call(AUDIO_TOKENIZER, values)["prompt_speech_tokens"]
        return tokens

    def speaker_features(self, reference_wav: FloatArray) -> SpeakerFeatures:
        outputs = self._call(SPEAKER_EMBEDDING, {"reference_wav": reference_wav})
        return SpeakerFeatures(outputs["prompt_spk_embedding"], outputs["prompt_speech_feat"])

    def speaker_of_labels(self, labels: Labels, seed: int) -> IntArray:
        async def asked() -> Values:  # in a loop and on a connection of its own: these voices are made seldom, and on another thread
            with closing(open_channel(LLM_BISTREAM)) as channel:
                return await channel.ask(input_values(LLM_BISTREAM, {**flat_values(labels), "seed": seed}))

        return np.array(asyncio.run(asked())["made_voice"], np.int32)

    def _call(self, contract: ModelContract, values: dict[str, Any]) -> Arrays:
        """A refused call has not reached the model, so it can be repeated."""
        for _ in range(RELOAD_ATTEMPTS):
            try:
                return self._call_once(contract, input_arrays(contract, values))
            except ShuttingDownError:
                self._pause(RELOAD_WAIT_S)
        raise EngineError("A model of the server is being loaded; try again in a few seconds.")

    def _call_once(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """Blocks until it is answered; a model that is not loaded at the moment refuses it at once."""
        request = self._pb_utils.InferenceRequest(  # never ask it ``is_cancelled``: that would abort the server
            model_name=contract.name,
            requested_output_names=[spec.name for spec in contract.outputs],
            inputs=[self._pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()],
        )
        response = request.exec(decoupled=False)
        if response.has_error():
            raise _sibling_error(response.error().message())
        # The tensors live in shared memory that is reused once the response is freed.
        return {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}


def _sibling_error(message: str) -> BistreamError:
    """The error in a sibling's message; Triton's own messages, which may contain paths, go to the log only."""
    error = parse_error(message)
    if type(error) is not BistreamError:
        return error
    logger.warning("a call to another model failed: %s", message)
    if "not ready" in message:  # models are being unloaded while sessions still run
        return shut_down()
    return EngineError("A model of the server failed; try again.")


class SiblingLanguageModel:
    """``ports.LanguageModelPort``."""

    def __init__(self, channel: CallChannel) -> None:
        self._channel = channel

    async def start(self, start: LanguageModelStart) -> None:
        await self._ask({**flat_values(start), "is_start": True, "is_pull": True})

    async def take(self, session_id: str, demand: TokenDemand) -> SpeechTokens:
        pull = {"session_id": session_id, "is_start": False, "is_pull": True}
        return speech_tokens(await self._ask({**pull, "wanted_tokens": demand.tokens, "slack_s": demand.slack_s}))

    async def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        await self._ask({"session_id": session_id, "text": text, "is_start": False, "is_end": is_end})

    async def cancel(self, session_id: str) -> None:
        await _send_cancel(self._channel, LLM_BISTREAM, session_id)

    async def _ask(self, values: Values) -> Values:
        return await self._channel.ask(input_values(LLM_BISTREAM, values))


class SiblingToken2Wav:
    """``ports.Token2WavPort``."""

    def __init__(self, channel: CallChannel) -> None:
        self._channel = channel
        self._report: LoadReport | None = None

    async def hop(self, hop: Token2WavHop) -> FloatArray:
        values: dict[str, Any] = {
            "session_id": hop.session_id,
            "target_speech_tokens": hop.token_ids,
            "finalize": hop.finalize,
            "lookahead_tokens": hop.lookahead_tokens,
            "playback_buffer_s": hop.playback_buffer_s,
            "speed": None if hop.speed == 1.0 else hop.speed,
        }
        if hop.prompt is not None:
            values |= {**prompt_values(hop.prompt), **flat_values(hop.audio), "expected_speech_s": hop.expected_speech_s}
        return await self._waveform(values)

    async def synthesize(
        self, token_ids: Sequence[int], prompt: VoicePrompt, audio: AudioOptions, speed: float, session_id: str
    ) -> FloatArray:
        values = {"session_id": session_id, "target_speech_tokens": tuple(token_ids), "speed": speed, **flat_values(audio)}
        return await self._waveform({**values, "is_offline": True, **prompt_values(prompt)})

    async def cancel(self, session_id: str) -> None:
        await _send_cancel(self._channel, TOKEN2WAV, session_id)

    async def _waveform(self, values: Values) -> FloatArray:
        outputs = await self._channel.ask(input_values(TOKEN2WAV, values))
        if not outputs:
            raise EngineError("token2wav ended a request without a response; try again.")
        if (report := outputs.get("load_report")) is not None:
            self._report = LoadReport(*report)
        waveform: FloatArray = outputs["waveform"]
        return waveform

    def report(self) -> LoadReport | None:
        """As it came with the last waveform."""
        return self._report


def speech_tokens(outputs: Values) -> SpeechTokens:
    """One answer of ``llm_bistream`` to a call."""
    text_fed, text_tokens_fed, attended = outputs["text_fed"]
    return SpeechTokens(
        token_ids=tuple(outputs["speech_token_ids"]),
        text_consumed=outputs["text_consumed"],
        finish_reason=FinishReason(outputs["finish_reason"]) if outputs["is_final"] else None,
        is_resting=outputs["is_resting"],
        text_fed=text_fed,
        text_tokens_fed=text_tokens_fed,
        text_attended=None if attended < 0 else attended,
        breaks=tuple(SpeechBreak(*row) for row in outputs.get("speech_breaks", ())),
    )


def speech_token_values(message: SpeechTokens) -> Values:
    """The outputs of ``llm_bistream`` for one message; the inverse of ``speech_tokens``."""
    attended = -1 if message.text_attended is None else message.text_attended
    values: dict[str, Any] = {
        "speech_token_ids": message.token_ids,
        "is_final": message.is_final,
        "finish_reason": message.finish_reason.value if message.finish_reason else "",
        "text_consumed": message.text_consumed,
        "text_fed": (message.text_fed, message.text_tokens_fed, attended),
        "is_resting": message.is_resting,
    }
    if message.breaks:
        values["speech_breaks"] = [dataclasses.astuple(one) for one in message.breaks]
    return values


async def _send_cancel(channel: CallChannel, contract: ModelContract, session_id: str) -> None:
    with suppress(UnknownSessionError, CancelledError):  # it has ended
        await channel.ask(input_values(contract, {"session_id": session_id, "is_cancel": True}))


class SiblingModels:
    """The ports of one front model; ``close`` it after the orchestrator."""

    def __init__(self, pb_utils: Any) -> None:
        self._channels = [open_channel(contract) for contract in (LLM_BISTREAM, TOKEN2WAV)]
        language_model, token2wav = self._channels
        self.ports = Ports(SiblingVoice(pb_utils), SiblingLanguageModel(language_model), SiblingToken2Wav(token2wav))

    def close(self) -> None:
        """Idempotent."""
        for channel in self._channels:
            channel.close()

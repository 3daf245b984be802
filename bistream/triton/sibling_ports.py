"""The orchestrator's ports in a server: its calls of the sibling models.

Those of sessions go through a channel to each model: over a socket where there is a keeper (``direct_channel.py``), else over BLS
(``channel.py``). The analysis of a recording is a request of its own over BLS.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bistream.errors import BistreamError, CancelledError, EngineError, ShuttingDownError, UnknownSessionError
from bistream.orchestration.ports import Ports
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.service import Token2WavHop
from bistream.triton.bls_client import BlsClient
from bistream.triton.call_sockets import socket_path
from bistream.triton.channel import Channel
from bistream.triton.direct_channel import DirectChannel
from bistream.triton.iterator_keeper import IteratorKeeper
from bistream.triton.other_front_doors import OtherFrontDoors
from bistream.types import FinishReason, FloatArray, IntArray, Sampling, SpeakerFeatures, SpeechTokens, TokenDemand, VoicePrompt
from bistream.wire import AUDIO_TOKENIZER, LLM_BISTREAM, SPEAKER_EMBEDDING, TOKEN2WAV, ModelContract, format_error, parse_error
from bistream.wire_arrays import Arrays, scalar_array, text_array

logger = logging.getLogger(__name__)

RELOAD_ATTEMPTS, RELOAD_WAIT_S = 16, 0.25  # 4 s: less than the end of a drain waits for its sessions


def sampling_arrays(sampling: Sampling) -> Arrays:
    arrays = {"seed": scalar_array(sampling.seed, np.int64), "temperature": scalar_array(sampling.temperature, np.float32)}
    if sampling.top_k is not None:
        arrays["top_k"] = scalar_array(sampling.top_k, np.int32)
    if sampling.top_p is not None:
        arrays["top_p"] = scalar_array(sampling.top_p, np.float32)
    return arrays


def prompt_arrays(prompt: VoicePrompt) -> Arrays:
    """Empty tensors are left out: their inputs are optional."""
    arrays: Arrays = {"prompt_spk_embedding": prompt.speaker_embedding.astype(np.float32, copy=False)}
    if len(prompt.speech_tokens):
        arrays["prompt_speech_tokens"] = prompt.speech_tokens.astype(np.int32, copy=False)
        arrays["prompt_speech_feat"] = prompt.speech_feat.astype(np.float32, copy=False)
    return arrays


class Calling(Protocol):
    """``Channel`` or ``DirectChannel``."""

    async def ask(self, arrays: Arrays) -> Arrays: ...


class SiblingVoice:
    """``ports.VoicePort``. A model that is not loaded at the moment is waited for: the keeper loads one whose process has died anew."""

    def __init__(self, client: BlsClient, pause: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._pause = pause

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        length = scalar_array(len(reference_wav), np.int32)
        arrays: Arrays = {"reference_wav": reference_wav.reshape(1, -1), "reference_wav_len": length}
        tokens: IntArray = self._call(AUDIO_TOKENIZER, arrays)["prompt_speech_tokens"]
        return tokens

    def speaker_features(self, reference_wav: FloatArray) -> SpeakerFeatures:
        outputs = self._call(SPEAKER_EMBEDDING, {"reference_wav": reference_wav.reshape(1, -1)})
        return SpeakerFeatures(outputs["prompt_spk_embedding"], outputs["prompt_speech_feat"])

    def _call(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """A refused call has not reached the model, so it can be repeated."""
        for _ in range(RELOAD_ATTEMPTS):
            try:
                return self._client.call(contract, arrays)
            except ShuttingDownError:
                self._pause(RELOAD_WAIT_S)
        raise EngineError("A model of the server is being loaded; try again in a few seconds.")


class SiblingLanguageModel:
    """``ports.LanguageModelPort``."""

    def __init__(self, channel: Calling) -> None:
        self._channel = channel

    async def start(self, start: LanguageModelStart) -> None:
        arrays: Arrays = {
            "session_id": text_array(start.session_id),
            "text": text_array(start.text),
            "is_start": scalar_array(True, np.bool_),
            "is_end": scalar_array(start.is_end, np.bool_),
            "is_pull": scalar_array(True, np.bool_),
            "prompt_text": text_array(start.prompt_text),
            **sampling_arrays(start.sampling),
        }
        if start.instruct_text:
            arrays["instruct_text"] = text_array(start.instruct_text)
        if start.text_normalization is not None:
            arrays["text_normalization"] = text_array(start.text_normalization)
        if len(start.prompt_speech_tokens):
            arrays["prompt_speech_tokens"] = start.prompt_speech_tokens.astype(np.int32, copy=False)
        await self._channel.ask(arrays)

    async def take(self, session_id: str, wanted_tokens: int) -> SpeechTokens:
        arrays: Arrays = {
            "session_id": text_array(session_id),
            "is_start": scalar_array(False, np.bool_),
            "is_pull": scalar_array(True, np.bool_),
            "wanted_tokens": scalar_array(int(wanted_tokens), np.int32),
        }
        if isinstance(wanted_tokens, TokenDemand) and wanted_tokens.slack_s is not None:
            arrays["slack_s"] = scalar_array(wanted_tokens.slack_s, np.float32)
        return speech_tokens(await self._channel.ask(arrays))

    async def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        arrays: Arrays = {
            "session_id": text_array(session_id),
            "text": text_array(text),
            "is_start": scalar_array(False, np.bool_),
            "is_end": scalar_array(is_end, np.bool_),
        }
        await self._channel.ask(arrays)

    async def cancel(self, session_id: str) -> None:
        await _send_cancel(self._channel, session_id)


class SiblingToken2Wav:
    """``ports.Token2WavPort``."""

    def __init__(self, channel: Calling, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel = channel
        self._report: LoadReport | None = None
        self._doors = OtherFrontDoors(clock)

    async def hop(self, hop: Token2WavHop) -> FloatArray:
        arrays: Arrays = {
            "session_id": text_array(hop.session_id),
            "finalize": scalar_array(hop.finalize, np.bool_),
            "seed": scalar_array(hop.seed, np.int64),
            "playback_buffer_s": scalar_array(hop.playback_buffer_s, np.float32),
        }
        if hop.token_ids:
            arrays["target_speech_tokens"] = np.array(hop.token_ids, np.int32)
        if hop.prompt is not None:
            arrays.update(prompt_arrays(hop.prompt))
            if hop.expected_speech_s is not None:
                arrays["expected_speech_s"] = scalar_array(hop.expected_speech_s, np.float32)
            self._doors.opened(hop.session_id)
        waveform = await self._waveform(arrays)
        if hop.finalize:
            self._doors.ended(hop.session_id)
        return waveform

    async def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float, session_id: str) -> FloatArray:
        arrays: Arrays = {
            "session_id": text_array(session_id),
            "seed": scalar_array(seed, np.int64),
            "speed": scalar_array(speed, np.float32),
            **prompt_arrays(prompt),
        }
        if token_ids:
            arrays["target_speech_tokens"] = np.array(token_ids, np.int32)
        return await self._waveform(arrays)

    async def cancel(self, session_id: str) -> None:
        await _send_cancel(self._channel, session_id)
        self._doors.ended(session_id)

    async def _waveform(self, arrays: Arrays) -> FloatArray:
        outputs = await self._channel.ask(arrays)
        if not outputs:
            raise EngineError("token2wav ended a request without a response; try again.")
        if (report := outputs.get("load_report")) is not None:
            self._report = LoadReport.from_array(report)
            self._doors.reported(self._report.sessions)
        waveform: FloatArray = outputs["waveform"]
        return waveform

    def report(self) -> LoadReport | None:
        """As it came with the last waveform."""
        return self._report

    def others(self) -> int:
        """As of the last waveform; 0 when that is long ago."""
        return self._doors.sessions


def speech_tokens(outputs: Arrays) -> SpeechTokens:
    """One response of ``llm_bistream``. Raises the ``BistreamError`` that ended the session."""
    text_fed, text_tokens_fed, attended = outputs["text_fed"].reshape(-1).tolist()
    reason = FinishReason(_text(outputs["finish_reason"])) if outputs["is_final"].reshape(-1)[0] else None
    if reason is FinishReason.ERROR:
        raise parse_error(_text(outputs["error"]))
    return SpeechTokens(
        token_ids=tuple(int(token) for token in outputs["speech_token_ids"]),
        text_consumed=int(outputs["text_consumed"].reshape(-1)[0]),
        finish_reason=reason,
        is_resting=bool(outputs["is_resting"].reshape(-1)[0]),
        text_fed=text_fed,
        text_tokens_fed=text_tokens_fed,
        text_attended=None if attended < 0 else attended,
    )


def speech_token_arrays(message: SpeechTokens, error: BistreamError | None = None) -> Arrays:
    """The outputs of ``llm_bistream`` for one message; the inverse of ``speech_tokens``."""
    attended = -1 if message.text_attended is None else message.text_attended
    return {
        "speech_token_ids": np.array(message.token_ids, np.int32),
        "is_final": scalar_array(message.is_final, np.bool_),
        "finish_reason": text_array(message.finish_reason.value if message.finish_reason else ""),
        "text_consumed": scalar_array(message.text_consumed, np.int32),
        "text_fed": np.array([[message.text_fed, message.text_tokens_fed, attended]], np.int32),
        "is_resting": scalar_array(message.is_resting, np.bool_),
        "error": text_array(format_error(error) if error else ""),
    }


def speech_error_arrays(error: BistreamError) -> Arrays:
    """The last message of a session that failed after it had sent tokens."""
    return speech_token_arrays(SpeechTokens((), finish_reason=FinishReason.ERROR), error)


def _text(array: NDArray[Any]) -> str:
    text: str = array.reshape(-1)[0].decode("utf-8")
    return text


async def _send_cancel(channel: Calling, session_id: str) -> None:
    with suppress(UnknownSessionError, CancelledError):  # it has ended
        await channel.ask({"session_id": text_array(session_id), "is_cancel": scalar_array(True, np.bool_)})


class SiblingModels:
    """The ports of one front door; ``close`` it after the orchestrator."""

    def __init__(self, pb_utils: Any, keeper: IteratorKeeper) -> None:
        client = BlsClient(pb_utils, keeper)
        self._channels = [_channel(client, contract) for contract in (LLM_BISTREAM, TOKEN2WAV)]
        language_model, token2wav = self._channels
        self.ports = Ports(SiblingVoice(client), SiblingLanguageModel(language_model), SiblingToken2Wav(token2wav))

    def close(self) -> None:
        """Idempotent."""
        for channel in self._channels:
            channel.close()


def _channel(client: BlsClient, contract: ModelContract) -> Channel | DirectChannel:
    path = socket_path(contract.name)
    return Channel(client, contract, secrets.token_hex(16)) if path is None else DirectChannel(path, contract.name)

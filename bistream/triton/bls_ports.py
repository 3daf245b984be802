"""The orchestrator's ports over BLS: calls from one Triton model to its siblings, through ``pb_utils.InferenceRequest``.

A request blocks until it is answered (as does iterating over a decoupled result; ``async_exec`` blocks a thread of a pool instead), so the
calls of sessions share a few of them (``channel.py``). Cancellation does not propagate through BLS and an iterator cannot be
cancelled: to stop a session, its ``cancel`` must be sent. ``is_cancelled`` is never called on a request made here: it would abort the
server. An error response is the last one read from an iterator (see ``sender.SiblingResponseSender``).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.errors import BistreamError, CancelledError, EngineError, ShuttingDownError, UnknownSessionError
from bistream.orchestration.ports import Ports
from bistream.refusals import shut_down
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.service import Token2WavHop
from bistream.triton.channel import Channel
from bistream.triton.iterator_keeper import IteratorKeeper
from bistream.types import FinishReason, FloatArray, IntArray, Sampling, SpeakerFeatures, SpeechTokens, TokenDemand, VoicePrompt
from bistream.wire import AUDIO_TOKENIZER, LLM_BISTREAM, SPEAKER_EMBEDDING, TOKEN2WAV, ModelContract, format_error, parse_error
from bistream.wire_arrays import Arrays, scalar_array, text_array

logger = logging.getLogger(__name__)

RELOAD_ATTEMPTS, RELOAD_WAIT_S = 16, 0.25  # 4 s: less than the end of a drain waits for its sessions


class BlsClient:
    """Calls sibling models; responses come back as dictionaries of arrays, errors as the original ``BistreamError``."""

    def __init__(self, pb_utils: Any, keeper: IteratorKeeper) -> None:
        self._pb_utils = pb_utils
        self._keeper = keeper

    def ask(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """The single response of a decoupled model; empty when it carries no data. Raises ``BistreamError``.

        A sibling must answer once, with the final flag on its only response. A second response can deadlock three threads: the
        stub's delivering thread locks the table of iterators and then the iterator; the waiting thread wakes up holding the
        iterator's lock and needs the GIL; the end of any other ``exec`` holds the GIL and needs the table (seen within minutes
        with ten busy clients). The first response takes another path.
        """
        responses = self._request(contract, arrays).exec(decoupled=True)
        try:
            answers = [self._outputs(response) for response in responses]
        finally:
            self._keeper.keep(responses)
        return next((answer for answer in answers if answer), {})

    def call(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """The response of a model that is not decoupled."""
        return self._outputs(self._request(contract, arrays).exec(decoupled=False))

    def _request(self, contract: ModelContract, arrays: Arrays) -> Any:
        return self._pb_utils.InferenceRequest(
            model_name=contract.name,
            requested_output_names=[spec.name for spec in contract.outputs],
            inputs=[self._pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()],
        )

    def _outputs(self, response: Any) -> Arrays:
        if response.has_error():
            raise sibling_error(response.error().message())
        # The tensors live in shared memory that is reused once the response is freed.
        return {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}


def sibling_error(message: str) -> BistreamError:
    """The error in a sibling's message; Triton's own messages, which may contain paths, go to the log only."""
    error = parse_error(message)
    if type(error) is not BistreamError:
        return error
    logger.warning("a call to another model failed: %s", message)
    if "not ready" in message:  # models are being unloaded while sessions still run
        return shut_down()
    return EngineError("A model of the server failed; try again.")


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


class BlsVoice:
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


class BlsLanguageModel:
    """``ports.LanguageModelPort``."""

    def __init__(self, channel: Channel) -> None:
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


class BlsToken2Wav:
    """``ports.Token2WavPort``."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._report: LoadReport | None = None

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
        return await self._waveform(arrays)

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

    async def _waveform(self, arrays: Arrays) -> FloatArray:
        outputs = await self._channel.ask(arrays)
        if not outputs:
            raise EngineError("token2wav ended a request without a response; try again.")
        if (report := outputs.get("load_report")) is not None:
            self._report = LoadReport.from_array(report)
        waveform: FloatArray = outputs["waveform"]
        return waveform

    def report(self) -> LoadReport | None:
        """As it came with the last waveform."""
        return self._report


def speech_tokens(outputs: Arrays) -> SpeechTokens:
    """One response of ``llm_bistream``. Raises the ``BistreamError`` that ended the session."""
    reason = FinishReason(_text(outputs["finish_reason"])) if outputs["is_final"].reshape(-1)[0] else None
    if reason is FinishReason.ERROR:
        raise parse_error(_text(outputs["error"]))
    return SpeechTokens(
        token_ids=tuple(int(token) for token in outputs["speech_token_ids"]),
        text_consumed=int(outputs["text_consumed"].reshape(-1)[0]),
        finish_reason=reason,
        is_resting=bool(outputs["is_resting"].reshape(-1)[0]),
        text_fed=int(outputs["text_fed"].reshape(-1)[0]),
        text_tokens_fed=int(outputs["text_fed"].reshape(-1)[1]),
    )


def speech_token_arrays(message: SpeechTokens, error: BistreamError | None = None) -> Arrays:
    """The outputs of ``llm_bistream`` for one message; the inverse of ``speech_tokens``."""
    return {
        "speech_token_ids": np.array(message.token_ids, np.int32),
        "is_final": scalar_array(message.is_final, np.bool_),
        "finish_reason": text_array(message.finish_reason.value if message.finish_reason else ""),
        "text_consumed": scalar_array(message.text_consumed, np.int32),
        "text_fed": np.array([[message.text_fed, message.text_tokens_fed]], np.int32),
        "is_resting": scalar_array(message.is_resting, np.bool_),
        "error": text_array(format_error(error) if error else ""),
    }


def speech_error_arrays(error: BistreamError) -> Arrays:
    """The last message of a session that failed after it had sent tokens."""
    return speech_token_arrays(SpeechTokens((), finish_reason=FinishReason.ERROR), error)


def _text(array: NDArray[Any]) -> str:
    text: str = array.reshape(-1)[0].decode("utf-8")
    return text


async def _send_cancel(channel: Channel, session_id: str) -> None:
    with suppress(UnknownSessionError, CancelledError):  # it has ended
        await channel.ask({"session_id": text_array(session_id), "is_cancel": scalar_array(True, np.bool_)})


class BlsModels:
    """The ports of one front door; ``close`` it after the orchestrator."""

    def __init__(self, pb_utils: Any, keeper: IteratorKeeper) -> None:
        client = BlsClient(pb_utils, keeper)
        self._channels = [Channel(client, contract, secrets.token_hex(16)) for contract in (LLM_BISTREAM, TOKEN2WAV)]
        language_model, token2wav = self._channels
        self.ports = Ports(BlsVoice(client), BlsLanguageModel(language_model), BlsToken2Wav(token2wav))

    def close(self) -> None:
        """Idempotent."""
        for channel in self._channels:
            channel.close()

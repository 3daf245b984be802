"""The orchestrator's ports over BLS: calls from one Triton model to its siblings, through ``pb_utils.InferenceRequest``.

Every call blocks (as does iterating over a decoupled result), so the orchestrator calls from its own threads. Cancellation does not
propagate through BLS and an iterator cannot be cancelled: to stop a session, its ``cancel`` must be sent. ``is_cancelled`` is never
called on a request made here: it would abort the server. An error response is the last one read from an iterator (see
``sender.SiblingResponseSender``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.errors import BistreamError, EngineError, ShuttingDownError, UnknownSessionError
from bistream.orchestration.ports import Ports
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.service import Token2WavHop
from bistream.triton.iterator_keeper import IteratorKeeper
from bistream.types import FinishReason, FloatArray, IntArray, Sampling, SpeechTokens, VoicePrompt
from bistream.wire import AUDIO_TOKENIZER, LLM_BISTREAM, SPEAKER_EMBEDDING, TOKEN2WAV, ModelContract, format_error, parse_error
from bistream.wire_arrays import Arrays, scalar_array, text_array

logger = logging.getLogger(__name__)


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
        return ShuttingDownError("The server is shutting down; start the session on another one.")
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
    """``ports.VoicePort``."""

    def __init__(self, client: BlsClient) -> None:
        self._client = client

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        length = scalar_array(len(reference_wav), np.int32)
        arrays: Arrays = {"reference_wav": reference_wav.reshape(1, -1), "reference_wav_len": length}
        tokens: IntArray = self._client.call(AUDIO_TOKENIZER, arrays)["prompt_speech_tokens"]
        return tokens

    def speaker_embedding(self, reference_wav: FloatArray) -> FloatArray:
        arrays: Arrays = {"reference_wav": reference_wav.reshape(1, -1)}
        embedding: FloatArray = self._client.call(SPEAKER_EMBEDDING, arrays)["prompt_spk_embedding"]
        return embedding


class BlsLanguageModel:
    """``ports.LanguageModelPort``."""

    def __init__(self, client: BlsClient) -> None:
        self._client = client

    def stream(self, start: LanguageModelStart, wanted_tokens: Callable[[], int]) -> Iterator[SpeechTokens]:
        arrays: Arrays = {
            "session_id": text_array(start.session_id),
            "text": text_array(start.text),
            "is_start": scalar_array(True, np.bool_),
            "is_end": scalar_array(start.is_end, np.bool_),
            "is_pull": scalar_array(True, np.bool_),
            "prompt_text": text_array(start.prompt_text),
            **sampling_arrays(start.sampling),
        }
        if len(start.prompt_speech_tokens):
            arrays["prompt_speech_tokens"] = start.prompt_speech_tokens.astype(np.int32, copy=False)
        self._client.ask(LLM_BISTREAM, arrays)
        return self._messages(start.session_id, wanted_tokens)

    def _messages(self, session_id: str, wanted_tokens: Callable[[], int]) -> Iterator[SpeechTokens]:
        arrays: Arrays = {
            "session_id": text_array(session_id),
            "is_start": scalar_array(False, np.bool_),
            "is_pull": scalar_array(True, np.bool_),
        }
        is_final = False
        while not is_final:
            arrays["wanted_tokens"] = scalar_array(wanted_tokens(), np.int32)
            message = speech_tokens(self._client.ask(LLM_BISTREAM, arrays))
            is_final = message.is_final
            yield message

    def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        arrays: Arrays = {
            "session_id": text_array(session_id),
            "text": text_array(text),
            "is_start": scalar_array(False, np.bool_),
            "is_end": scalar_array(is_end, np.bool_),
        }
        self._client.ask(LLM_BISTREAM, arrays)

    def cancel(self, session_id: str) -> None:
        _send_cancel(self._client, LLM_BISTREAM, session_id)


class BlsToken2Wav:
    """``ports.Token2WavPort``."""

    def __init__(self, client: BlsClient) -> None:
        self._client = client

    def hop(self, hop: Token2WavHop) -> FloatArray:
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
        return self._waveform(arrays)

    def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> FloatArray:
        arrays: Arrays = {"seed": scalar_array(seed, np.int64), "speed": scalar_array(speed, np.float32), **prompt_arrays(prompt)}
        if token_ids:
            arrays["target_speech_tokens"] = np.array(token_ids, np.int32)
        return self._waveform(arrays)

    def cancel(self, session_id: str) -> None:
        _send_cancel(self._client, TOKEN2WAV, session_id)

    def _waveform(self, arrays: Arrays) -> FloatArray:
        outputs = self._client.ask(TOKEN2WAV, arrays)
        if not outputs:
            raise EngineError("token2wav ended a request without a response; try again.")
        waveform: FloatArray = outputs["waveform"]
        return waveform


def speech_tokens(outputs: Arrays) -> SpeechTokens:
    """One response of ``llm_bistream``. Raises the ``BistreamError`` that ended the session."""
    reason = FinishReason(_text(outputs["finish_reason"])) if outputs["is_final"].reshape(-1)[0] else None
    if reason is FinishReason.ERROR:
        raise parse_error(_text(outputs["error"]))
    return SpeechTokens(
        token_ids=tuple(int(token) for token in outputs["speech_token_ids"]),
        text_consumed=int(outputs["text_consumed"].reshape(-1)[0]),
        finish_reason=reason,
    )


def speech_token_arrays(message: SpeechTokens, error: BistreamError | None = None) -> Arrays:
    """The outputs of ``llm_bistream`` for one message; the inverse of ``speech_tokens``."""
    return {
        "speech_token_ids": np.array(message.token_ids, np.int32),
        "is_final": scalar_array(message.is_final, np.bool_),
        "finish_reason": text_array(message.finish_reason.value if message.finish_reason else ""),
        "text_consumed": scalar_array(message.text_consumed, np.int32),
        "error": text_array(format_error(error) if error else ""),
    }


def speech_error_arrays(error: BistreamError) -> Arrays:
    """The last message of a session that failed after it had sent tokens."""
    return speech_token_arrays(SpeechTokens((), finish_reason=FinishReason.ERROR), error)


def _text(array: NDArray[Any]) -> str:
    text: str = array.reshape(-1)[0].decode("utf-8")
    return text


def _send_cancel(client: BlsClient, contract: ModelContract, session_id: str) -> None:
    arrays = {"session_id": text_array(session_id), "is_cancel": scalar_array(True, np.bool_)}
    try:
        client.ask(contract, arrays)
    except UnknownSessionError:
        pass  # it has ended by itself


def bls_ports(pb_utils: Any, keeper: IteratorKeeper) -> Ports:
    client = BlsClient(pb_utils, keeper)
    return Ports(voice=BlsVoice(client), language_model=BlsLanguageModel(client), token2wav=BlsToken2Wav(client))

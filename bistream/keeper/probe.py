"""Probes every model of a running server with a real request: readiness stays 200 when a model's process is dead or stuck.

Each probe is a small request whose answer shows that the model's process and its engine work. An answer with one of our own
errors (BUSY, UNKNOWN_SESSION, ...) is a sign of life; ENGINE_ERROR, Triton's own messages and timeouts are not. Called by
``supervisor``.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from bistream.checkpoint import read_config
from bistream.contract.codec import Arrays, scalar_array, text_array
from bistream.contract.fields import AUDIO_TOKENIZER, CONTRACTS, COSYVOICE2, COSYVOICE2_BISTREAM, LLM_BISTREAM, SPEAKER_EMBEDDING, TOKEN2WAV
from bistream.contract.refusals import parse_error
from bistream.errors import ERRORS_BY_CODE, BistreamError, EngineError
from bistream.keeper.server_process import Interrupted, never
from bistream.rates import REFERENCE_SAMPLE_RATE
from bistream.token2wav.renderer import sizes_of

WAIT_INTERVAL_S = 0.25
CONFIG_TIMEOUT_S = 10.0
Answers = queue.SimpleQueue[InferenceServerException | None]  # None: a response without an error
_DATATYPES = {(contract.name, spec.name): spec.datatype for contract in CONTRACTS for spec in contract.inputs}


class ProbeError(Exception):
    """A model does not work; the message names it."""


def _recording(server: triton.InferenceServerClient) -> Arrays:
    """A second of faint noise."""
    noise = np.random.default_rng(0).standard_normal(REFERENCE_SAMPLE_RATE).astype(np.float32)
    return {"reference_wav": 0.01 * noise.reshape(1, -1)}


def _speak_one_token(server: triton.InferenceServerClient) -> Arrays:
    """A whole session of one letter; its first tokens are the answer, and it ends by itself soon after."""
    return {"session_id": text_array(f"probe-{uuid.uuid4().hex}"), "text": text_array("a"), "is_end": scalar_array(True, np.bool_)}


def _render_tokens(server: triton.InferenceServerClient) -> Arrays:
    """A short utterance, with a speaker embedding of the checkpoint's size."""
    config = server.get_model_config(TOKEN2WAV.name, as_json=True, client_timeout=CONFIG_TIMEOUT_S)["config"]
    size = _speaker_embedding_size(config["parameters"]["model_dir"]["string_value"])
    return {"target_speech_tokens": np.arange(8, dtype=np.int32), "prompt_spk_embedding": np.ones(size, np.float32)}


@cache
def _speaker_embedding_size(model_dir: str) -> int:
    """Read once, while the server that has just loaded this directory starts."""
    return sizes_of(read_config(model_dir)).speaker_embedding_size


def _cancel_nothing(server: triton.InferenceServerClient) -> Arrays:
    return {"session_id": text_array("probe-unknown"), "is_cancel": scalar_array(True, np.bool_)}


def _say_nothing(server: triton.InferenceServerClient) -> Arrays:
    return {"target_text": text_array("")}


PROBES: Mapping[str, Callable[[triton.InferenceServerClient], Arrays]] = {
    AUDIO_TOKENIZER.name: _recording,
    SPEAKER_EMBEDDING.name: _recording,
    LLM_BISTREAM.name: _speak_one_token,
    TOKEN2WAV.name: _render_tokens,
    COSYVOICE2_BISTREAM.name: _cancel_nothing,
    COSYVOICE2.name: _say_nothing,
}


def probe(grpc_url: str, models: list[str], timeout_s: float, should_stop: Callable[[], bool] = never) -> None:
    """Probe each of ``models`` in turn. Raises ``ProbeError`` for the first that does not work, ``Interrupted`` on request."""
    for model in models:
        if model in PROBES:
            _probe_model(grpc_url, model, timeout_s, should_stop)


def _probe_model(grpc_url: str, model: str, timeout_s: float, should_stop: Callable[[], bool]) -> None:
    answers: Answers = queue.SimpleQueue()
    client = triton.InferenceServerClient(grpc_url)
    error: InferenceServerException | None = None
    has_answered = False
    try:
        arrays = PROBES[model](client)
        client.start_stream(callback=lambda result, error: answers.put(error))
        inputs = [_input(model, name, array) for name, array in arrays.items()]
        client.async_stream_infer(model, inputs, request_id=uuid.uuid4().hex, enable_empty_final_response=True)
        error = _first_answer(answers, model, timeout_s, should_stop)
        has_answered = True
    except InferenceServerException as failure:
        raise ProbeError(f"model {model}: {failure.message()}") from None
    except BistreamError as failure:
        raise ProbeError(f"model {model} cannot be probed: {failure.sentence}") from None
    finally:
        # A stream cancelled at the moment of an answer would keep the model from ever unloading.
        client.stop_stream(cancel_requests=not has_answered)
        client.close()
    if error is not None and not _is_sign_of_life(error.message() or ""):
        raise ProbeError(f"model {model}: {error.message()}")


def _first_answer(answers: Answers, model: str, timeout_s: float, should_stop: Callable[[], bool]) -> InferenceServerException | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if should_stop():
            raise Interrupted
        try:
            return answers.get(timeout=WAIT_INTERVAL_S)
        except queue.Empty:
            continue
    raise ProbeError(f"model {model} did not answer within {timeout_s:.0f} s")


def _is_sign_of_life(message: str) -> bool:
    error = parse_error(message)
    return error.code in ERRORS_BY_CODE and not isinstance(error, EngineError)


def _input(model: str, name: str, array: NDArray[Any]) -> triton.InferInput:
    tensor = triton.InferInput(name, list(array.shape), _DATATYPES[model, name])
    tensor.set_data_from_numpy(array)
    return tensor


class ProbeSchedule:
    """When the next probe is due, and how many have failed in a row. A single slow answer under load does not justify a restart."""

    def __init__(self, interval_s: float, failures_allowed: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._failures_allowed = failures_allowed
        self._clock = clock
        self._due_at = clock() + interval_s
        self._failures = 0

    def is_due(self) -> bool:
        return self._interval_s > 0 and self._clock() >= self._due_at

    def record(self, works: bool) -> bool:
        """Note the outcome of a probe; returns whether the server counts as broken."""
        self._due_at = self._clock() + self._interval_s
        self._failures = 0 if works else self._failures + 1
        return self._failures > self._failures_allowed

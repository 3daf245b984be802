"""Starts one Triton server, asks each of its models for an answer, and verifies what they say. Used by ``supervisor`` and by tests.

Each probe is a small request whose answer shows that the model's process and its engine work; readiness stays 200 when a process is dead
or stuck. An answer with one of our own errors (BUSY, UNKNOWN_SESSION, ...) is a sign of life; ENGINE_ERROR, Triton's own messages and
time-outs are not.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from bistream.bicodec.config import read_config as read_codec_config
from bistream.checkpoints.reader import read_config
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.contract.fields import (
    AUDIO_TOKENIZER,
    CONTRACTS,
    COSYVOICE2,
    COSYVOICE2_BISTREAM,
    LLM_BISTREAM,
    SPARK_TTS,
    SPEAKER_EMBEDDING,
    TOKEN2WAV,
)
from bistream.contract.refusals import parse_error
from bistream.errors import ERRORS_BY_CODE, BistreamError, EngineError
from bistream.keeper.host import ServerError
from bistream.keeper.model_requests import ModelStream, RequestError, Values
from bistream.keeper.repository import model_names
from bistream.keeper.server_process import ServerSettings, TritonServer, never
from bistream.processes.start_phases import phase
from bistream.token2wav.renderer import sizes_of

Verify = Callable[[TritonServer, Callable[[], bool]], None]  # what a server must pass before it is ready, once its models have answered


def verify_nothing(server: TritonServer, should_stop: Callable[[], bool]) -> None:
    """should_stop: when to raise ``Interrupted``. Others raise ``ServerError``."""


def start_server(
    settings: ServerSettings, probe_timeout_s: float, should_stop: Callable[[], bool] = never, verify: Verify = verify_nothing
) -> TritonServer:
    """A server whose models have all answered. Raises ``ServerError`` or ``Interrupted``; nothing is left running then."""
    server = TritonServer(settings)
    with phase("Triton and its models"):
        server.start(should_stop)
    try:
        with phase("probes"):
            probe_all(server.grpc_url, model_names(settings.model_repository), probe_timeout_s, should_stop)
        with phase("verification"):
            verify(server, should_stop)
    except BaseException as error:
        server.stop(exit_timeout_s=0.0)
        if isinstance(error, RequestError):
            raise ServerError(f"The server started, but {error}.") from None
        raise
    return server


def probe_all(grpc_url: str, models: list[str], timeout_s: float, should_stop: Callable[[], bool] = never) -> None:
    """All models at the same time: a first request of each takes longest. Raises as ``probe``, for the first one in order."""
    if not models:
        return
    with ThreadPoolExecutor(len(models), thread_name_prefix="probe") as pool:
        for done in [pool.submit(probe, grpc_url, model, timeout_s, should_stop) for model in models]:
            done.result()


@cache
def _speaker_embedding_size(model_dir: str) -> int:
    """Read once, while the server that has just loaded this directory starts."""
    checkpoint = read_config(model_dir)
    if checkpoint.family.has_codec:
        return read_codec_config(model_dir).speaker.tokens
    return sizes_of(checkpoint).speaker_embedding_size


def _recording(stream: ModelStream) -> Values:
    """A second of faint noise."""
    noise = np.random.default_rng(0).standard_normal(REFERENCE_SAMPLE_RATE).astype(np.float32)
    return {"reference_wav": 0.01 * noise.reshape(1, -1)}


def _short_utterance(stream: ModelStream) -> Values:
    """With a speaker embedding of the checkpoint's size."""
    size = _speaker_embedding_size(stream.parameter(TOKEN2WAV, "model_dir"))
    return {"target_speech_tokens": np.arange(8, dtype=np.int32), "prompt_spk_embedding": np.ones(size, np.float32)}


PROBES: Mapping[str, Callable[[ModelStream], Values]] = {
    AUDIO_TOKENIZER.name: _recording,
    SPEAKER_EMBEDDING.name: _recording,
    # A whole session of one letter; its first tokens are the answer, and it ends by itself soon after.
    LLM_BISTREAM.name: lambda stream: {"session_id": f"probe-{uuid.uuid4().hex}", "text": "a", "is_end": True},
    TOKEN2WAV.name: _short_utterance,
    COSYVOICE2_BISTREAM.name: lambda stream: {"session_id": "probe-unknown", "is_cancel": True},
    COSYVOICE2.name: lambda stream: {"target_text": ""},
    SPARK_TTS.name: lambda stream: {"target_text": ""},
}


def probe(grpc_url: str, model: str, timeout_s: float, should_stop: Callable[[], bool]) -> None:
    """Raises ``RequestError`` when the model does not work, ``Interrupted`` on request."""
    contract = next((contract for contract in CONTRACTS if contract.name == model), None)
    if contract is None:
        return
    try:
        with ModelStream(grpc_url, timeout_s, should_stop) as stream:
            stream.ask(contract, PROBES[model](stream))
    except BistreamError as error:
        raise RequestError(f"model {model} cannot be probed: {error.sentence}") from None
    except RequestError as error:
        if not _is_sign_of_life(error.answer):
            raise


def _is_sign_of_life(answer: str) -> bool:
    error = parse_error(answer)
    return error.code in ERRORS_BY_CODE and not isinstance(error, EngineError)

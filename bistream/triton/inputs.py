"""Reads and checks the tensors of a Triton request against the wire contract, and builds the stages' requests from them.

In: a ``pb_utils.InferenceRequest``, or a call of a channel. Out: typed values, or ``InvalidInputError`` with one sentence. Triton accepts
a request that lacks a required input if it has an optional one, so everything is checked here. Called by the ``model.py`` files.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.errors import InvalidInputError
from bistream.limits import check_session_id, check_session_secret, check_speaker_name
from bistream.orchestration.ports import BistreamRequest
from bistream.text2token.service import LanguageModelStart
from bistream.types import FloatArray, IntArray, Sampling, VoicePrompt
from bistream.wire import SESSION_SECRET_PARAMETER, ModelContract, TensorSpec
from bistream.wire_arrays import NUMPY_TYPES, Arrays


class RequestInputs(ABC):
    """Typed access to the inputs of one request, by the names of its contract."""

    def __init__(self, contract: ModelContract) -> None:
        self._specs = _specs(contract)

    @abstractmethod
    def _read(self, name: str) -> NDArray[Any] | None: ...

    @abstractmethod
    def parameter(self, name: str) -> Any:
        """A parameter of the request: a string, a number or a truth value; ``None`` when absent."""

    def array(self, name: str) -> NDArray[Any] | None:
        """The tensor in its wire shape; ``None`` when absent and optional."""
        spec = self._specs[name]
        array = self._read(name)
        if array is None:
            if spec.optional:
                return None
            raise InvalidInputError(f"Input {name} is missing; send it as {_describe(spec)}.")
        if array.dtype != NUMPY_TYPES[spec.datatype] or not _fits(array.shape, spec.dims):
            raise InvalidInputError(f"Input {name} has type {array.dtype} and shape {list(array.shape)}; send it as {_describe(spec)}.")
        return array

    def required(self, name: str) -> NDArray[Any]:
        array = self.array(name)
        assert array is not None, f"{name} is optional in the contract"
        return array

    def scalar(self, name: str) -> Any:
        """The only element of a [1, 1] input, as a Python value; ``None`` when absent."""
        array = self.array(name)
        return None if array is None else array.reshape(-1)[0]

    def data(self, name: str) -> bytes | None:
        value = self.scalar(name)
        return value.encode("utf-8") if isinstance(value, str) else value

    def text(self, name: str) -> str | None:
        value = self.data(name)
        try:
            return None if value is None else value.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidInputError(f"Input {name} is not valid UTF-8; encode it as UTF-8.") from None

    def flag(self, name: str, default: bool) -> bool:
        value = self.scalar(name)
        return default if value is None else bool(value)

    def integer(self, name: str) -> int | None:
        value = self.scalar(name)
        return None if value is None else int(value)

    def number(self, name: str) -> float | None:
        value = self.scalar(name)
        return None if value is None else float(value)

    def integers(self, name: str) -> IntArray:
        """An int32 vector, copied; empty when absent."""
        array = self.array(name)
        return np.zeros(0, np.int32) if array is None else array.reshape(-1).copy()

    def floats(self, name: str) -> FloatArray | None:
        """A float32 array, copied (Triton reuses the tensor's memory once the request is answered)."""
        array = self.array(name)
        return None if array is None else array.copy()


class TritonInputs(RequestInputs):
    """Of a ``pb_utils.InferenceRequest``."""

    def __init__(self, request: Any, contract: ModelContract) -> None:
        super().__init__(contract)
        self._request = request
        self._tensors = {tensor.name(): tensor for tensor in request.inputs()}  # each call makes new objects of all of them

    def _read(self, name: str) -> NDArray[Any] | None:
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.as_numpy()

    def parameter(self, name: str) -> Any:
        return json.loads(self._request.parameters() or "{}").get(name)


class CallInputs(RequestInputs):
    """Of a call that came through a channel: the same inputs, as arrays; names that the contract lacks are not looked at."""

    def __init__(self, arrays: Arrays, contract: ModelContract) -> None:
        super().__init__(contract)
        self._arrays = arrays

    def _read(self, name: str) -> NDArray[Any] | None:
        return self._arrays.get(name)

    def parameter(self, name: str) -> Any:
        return None


@functools.cache
def _specs(contract: ModelContract) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in contract.inputs}


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(wanted in (-1, found) for found, wanted in zip(shape, dims, strict=True))


def _describe(spec: TensorSpec) -> str:
    return f"{spec.datatype} [{', '.join('N' if size < 0 else str(size) for size in spec.dims)}]"


def read_session_id(inputs: RequestInputs) -> str | None:
    session_id = inputs.text("session_id")
    if session_id is not None:
        check_session_id(session_id)
    return session_id


def require_session_id(inputs: RequestInputs) -> str:
    session_id = read_session_id(inputs)
    if session_id is None:
        raise InvalidInputError("Input session_id is missing; send the id of the session.")
    return session_id


def read_session_secret(inputs: RequestInputs) -> str | None:
    secret: str | None = inputs.parameter(SESSION_SECRET_PARAMETER)
    if secret is not None:
        check_session_secret(secret)
    return secret


def read_speaker_id(inputs: RequestInputs) -> str | None:
    speaker_id = inputs.text("speaker_id")
    if speaker_id is not None:
        check_speaker_name(speaker_id)
    return speaker_id


def read_sampling(inputs: RequestInputs) -> Sampling:
    """Absent inputs keep the defaults of ``Sampling``; values are checked when a session starts (``limits.check_sampling``)."""
    given = {
        "seed": inputs.integer("seed"),
        "temperature": inputs.number("temperature"),
        "top_k": inputs.integer("top_k"),
        "top_p": inputs.number("top_p"),
    }
    return Sampling(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def read_recording(inputs: RequestInputs, name: str) -> FloatArray | None:
    """float32 [N] of an input [1, N]."""
    wav = inputs.floats(name)
    return None if wav is None else wav.reshape(-1)


def bistream_request(inputs: RequestInputs) -> BistreamRequest:
    """The request of ``cosyvoice2_bistream``."""
    return BistreamRequest(
        target_text=inputs.data("target_text"),
        reference_wav=read_recording(inputs, "reference_wav"),
        reference_wav_len=inputs.integer("reference_wav_len"),
        reference_text=inputs.data("reference_text"),
        reference_hash=inputs.text("reference_hash"),
        speaker_id=read_speaker_id(inputs),
        session_id=read_session_id(inputs),
        is_start=inputs.flag("is_start", True),
        is_end=inputs.flag("is_end", True),
        is_cancel=inputs.flag("is_cancel", False),
        sampling=read_sampling(inputs),
        speed=inputs.number("speed"),
        text_normalization=inputs.text("text_normalization"),
        session_secret=read_session_secret(inputs),
        instruct_text=inputs.data("instruct_text"),
        is_cross_lingual=inputs.flag("is_cross_lingual", False),
        source_wav=read_recording(inputs, "source_wav"),
        source_wav_len=inputs.integer("source_wav_len"),
    )


def upstream_request(inputs: RequestInputs, offline: bool) -> BistreamRequest:
    """The request of ``cosyvoice2``: a session whose whole text, or recording to convert, is in this request."""
    text, source_wav = inputs.data("target_text"), read_recording(inputs, "source_wav")
    if text is None and source_wav is None:
        raise InvalidInputError("Input target_text is missing; send the text to speak, or source_wav to convert a recording.")
    return BistreamRequest(
        target_text=text,
        reference_wav=read_recording(inputs, "reference_wav"),
        reference_wav_len=inputs.integer("reference_wav_len"),
        reference_text=inputs.data("reference_text"),
        reference_hash=inputs.text("reference_hash"),
        speaker_id=read_speaker_id(inputs),
        instruct_text=inputs.data("instruct_text"),
        is_cross_lingual=inputs.flag("is_cross_lingual", False),
        source_wav=source_wav,
        source_wav_len=inputs.integer("source_wav_len"),
        text_normalization=inputs.text("text_normalization"),
        offline=offline,
    )


def language_model_start(inputs: RequestInputs) -> LanguageModelStart:
    return LanguageModelStart(
        session_id=require_session_id(inputs),
        text=inputs.data("text") or b"",
        is_end=inputs.flag("is_end", True),
        prompt_text=inputs.text("prompt_text") or "",
        prompt_speech_tokens=inputs.integers("prompt_speech_tokens"),
        sampling=read_sampling(inputs),
        instruct_text=inputs.text("instruct_text") or "",
        text_normalization=inputs.text("text_normalization"),
    )


def voice_prompt(inputs: RequestInputs, mel_bins: int) -> VoicePrompt | None:
    """The voice in a session's first request to ``token2wav``; ``None`` when the request has none.

    mel_bins: width of the empty features that replace an absent ``prompt_speech_feat``. The service checks whether shapes match.
    """
    embedding = inputs.floats("prompt_spk_embedding")
    if embedding is None:
        return None
    tokens = inputs.integers("prompt_speech_tokens")
    feat = inputs.floats("prompt_speech_feat")
    if feat is None:
        feat = np.zeros((0, mel_bins), np.float32)
    return VoicePrompt(prompt_text="", speech_tokens=tokens, speech_feat=feat, speaker_embedding=embedding)

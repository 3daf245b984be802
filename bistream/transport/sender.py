"""The only module that calls a Triton response sender.

A mistake here kills the whole server, not only one request: two threads sending on one sender corrupt memory, and
``is_cancelled`` after the final flag is a segmentation fault. So every call is made under the request's lock, and no
Triton call follows the final flag. Used by all decoupled models, from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bistream.contract.codec import Values, output_arrays
from bistream.contract.fields import ModelContract
from bistream.contract.refusals import format_error
from bistream.errors import BistreamError, EngineError
from bistream.transport.outbox import Outbox
from bistream.types import AudioChunk

logger = logging.getLogger(__name__)

_FAILED_SENTENCE = "The server failed unexpectedly; its log has the reason. Try again."
# Triton status of each error code; ENGINE_ERROR is INTERNAL.
_STATUS_BY_CODE = {
    "INVALID_INPUT": "INVALID_ARG",
    "UNKNOWN_SESSION": "NOT_FOUND",
    "UNKNOWN_SPEAKER": "NOT_FOUND",
    "UNKNOWN_VOICE": "NOT_FOUND",
    "SESSION_EXISTS": "ALREADY_EXISTS",
    "BUSY": "UNAVAILABLE",
    "SHUTTING_DOWN": "UNAVAILABLE",
    "SESSION_TIMEOUT": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
}


def public_error(error: BaseException) -> BistreamError:
    """The error a client may see: ours unchanged, anything else (logged with its stack) as one sentence without details."""
    if isinstance(error, BistreamError):
        return error
    logger.error("unexpected error", exc_info=error)
    return EngineError(_FAILED_SENTENCE)


def output_tensors(pb_utils: Any, contract: ModelContract, values: Values) -> list[Any]:
    return [pb_utils.Tensor(name, array) for name, array in output_arrays(contract, values).items()]


def data_response(pb_utils: Any, contract: ModelContract, values: Values) -> Any:
    return pb_utils.InferenceResponse(output_tensors=output_tensors(pb_utils, contract, values))


def error_response(pb_utils: Any, error: BistreamError) -> Any:
    status = getattr(pb_utils.TritonError, _STATUS_BY_CODE.get(error.code, "INTERNAL"))
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(format_error(error), status))


class Answerer(Protocol):
    """Answers one request of a sibling. Thread-safe; nothing raises, and after the end everything is harmless."""

    def send(self, values: Values, is_last: bool = False) -> None:
        """One response with these outputs."""

    def finish(self, error: BistreamError | None = None) -> None:
        """No response follows. error: why the request has failed."""

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more. May block."""


class ResponseSender:
    """Answers one decoupled request. No method raises; after ``finish`` every method is harmless."""

    def __init__(self, pb_utils: Any, triton_sender: Any, contract: ModelContract) -> None:
        """contract: of the model that answers."""
        self._pb_utils = pb_utils
        self._contract = contract
        self._triton_sender = triton_sender
        self._lock = threading.Lock()
        self._finished = False
        self._cancelled = False

    def send(self, values: Values, is_last: bool = False) -> None:
        """One response with these outputs; dropped when the request is finished. is_last: with the final flag."""
        try:
            tensors = output_tensors(self._pb_utils, self._contract, values)
            response = self._pb_utils.InferenceResponse(output_tensors=tensors)
        except Exception as error:
            self.finish(public_error(error))
            return
        with self._lock:
            if not self._finished:
                self._finished = is_last
                self._call(response, is_last)
        # The stub drops outputs that the client did not request without holding the GIL; our references must outlive the stub's.
        del tensors

    def finish(self, error: BistreamError | None = None) -> None:
        """The error's response, if there is one, then the empty final response (upstream's clients wait for the latter)."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            if error is not None:
                self._call(error_response(self._pb_utils, error))
            self._call(None, final=True)

    def is_cancelled(self) -> bool:
        """Whether the client's stream is gone. After the end: the last known answer."""
        with self._lock:
            if not self._finished and not self._cancelled:
                self._cancelled = bool(self._triton_sender.is_cancelled())
            return self._cancelled

    def _call(self, response: Any, final: bool = False) -> None:
        """The only call of Triton's ``send``; with the lock held. A failure can only be logged."""
        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        try:
            if response is None:
                self._triton_sender.send(flags=flags)
            else:
                self._triton_sender.send(response, flags=flags)
        except Exception:
            logger.exception("a response could not be sent")


class BistreamAudioSender:
    """``ports.AudioSender`` in the outputs of ``cosyvoice2_bistream``."""

    def __init__(self, sender: ResponseSender, outbox: Outbox) -> None:
        self._sender = sender
        self._outbox = outbox

    async def send(self, chunk: AudioChunk) -> None:
        submit = self._outbox.submit if chunk.sequence_number else self._outbox.submit_first
        await asyncio.wrap_future(submit(self._sender.send, self.values(chunk)))

    def report(self, heard: AudioChunk) -> None:
        self._outbox.submit(self._sender.send, self.values(heard))

    def finish(self, error: BistreamError | None) -> None:
        self._outbox.submit(self._sender.finish, error)

    def is_cancelled(self) -> bool:
        return self._sender.is_cancelled()

    @staticmethod
    def values(chunk: AudioChunk) -> Values:
        return {name: getattr(chunk, name) for name in ("waveform", "sequence_number", "text_consumed", "text_position")}


class CallAudioSender:
    """``ports.AudioSender`` of a call by another model, in the same outputs: an answer is only put beside others of its channel."""

    def __init__(self, answer: Answerer) -> None:
        self._answer = answer
        self.is_cancelled, self.finish = answer.is_cancelled, answer.finish

    async def send(self, chunk: AudioChunk) -> None:
        self._answer.send(BistreamAudioSender.values(chunk))

    def report(self, heard: AudioChunk) -> None:
        self._answer.send(BistreamAudioSender.values(heard))


class WaveformSender(BistreamAudioSender):
    """``ports.AudioSender`` in upstream's outputs: the waveform alone."""

    @staticmethod
    def values(chunk: AudioChunk) -> Values:
        return {"waveform": chunk.waveform}


class CollectingSender:
    """``ports.AudioSender`` of a request with a single response: collects the audio until the session has ended.

    ``request`` is the Triton request being executed; its cancellation is polled only until ``wait`` returns.
    """

    def __init__(self, request: Any) -> None:
        self._request: Any = request
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._chunks: list[NDArray[np.float32]] = []
        self._error: BistreamError | None = None
        self._cancelled = False

    async def send(self, chunk: AudioChunk) -> None:
        self._chunks.append(chunk.waveform)

    def report(self, heard: AudioChunk) -> None:
        raise AssertionError("a request with a single response cancels no other")

    def finish(self, error: BistreamError | None) -> None:
        self._error = error
        self._ended.set()

    def is_cancelled(self) -> bool:
        with self._lock:
            if self._request is None:
                return False
            if not self._cancelled:  # a cancelled request needs no further round trip
                self._cancelled = bool(self._request.is_cancelled())
            return self._cancelled

    def wait(self) -> NDArray[np.float32]:
        """float32 [N] at 24 kHz, once the session has ended. Raises its ``BistreamError``."""
        self._ended.wait()
        with self._lock:
            self._request = None
        if self._error is not None:
            raise self._error.renewed(self._error.session_id)
        chunks, self._chunks = self._chunks, []  # keeps no audio, even if this sender is still referenced
        return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)

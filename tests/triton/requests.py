"""A bare client for the tests: any tensors, valid or not, on one gRPC stream, and all responses."""

from __future__ import annotations

import queue
import threading
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from bistream.contract.codec import scalar_array, text_array
from bistream.contract.fields import SESSION_SECRET_PARAMETER
from bistream.contract.refusals import parse_error
from bistream.errors import BistreamError

ANSWER_TIMEOUT_S = 240.0  # decides nothing on a working server
DATATYPES = {"object": "BYTES", "bool": "BOOL", "int32": "INT32", "int64": "INT64", "float32": "FP32", "float64": "FP64"}
SCALAR_TYPES: dict[str, type[np.generic]] = {
    "reference_wav_len": np.int32,
    "source_wav_len": np.int32,
    "is_cross_lingual": np.bool_,
    "is_marked": np.bool_,
    "is_start": np.bool_,
    "is_end": np.bool_,
    "is_cancel": np.bool_,
    "finalize": np.bool_,
    "is_offline": np.bool_,
    "seed": np.int64,
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "speed": np.float32,
}


@dataclass
class Answer:
    """All responses to one request. ``finals``: how many carried the final flag; ``last_is_empty``: the last one carried no data."""

    request_id: str
    outputs: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    error: BistreamError | None = None
    errors: int = 0
    finals: int = 0
    last_is_empty: bool = False

    @property
    def code(self) -> str | None:
        return self.error.code if self.error else None

    @property
    def waveform(self) -> NDArray[np.float32]:
        chunks = [output["waveform"].reshape(-1) for output in self.outputs]
        return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)


def to_input(name: str, value: Any) -> triton.InferInput:
    """Python values become tensors of the contract's shape; arrays are sent unchanged."""
    if isinstance(value, str | bytes):
        array = text_array(value)
    elif isinstance(value, np.ndarray):
        array = value
    else:
        array = scalar_array(value, SCALAR_TYPES[name])
    tensor = triton.InferInput(name, list(array.shape), DATATYPES[str(array.dtype)])
    tensor.set_data_from_numpy(array)
    return tensor


class Stream:
    """One gRPC stream. ``send`` any number of requests; ``receive`` collects responses until a request has its final one."""

    def __init__(self, grpc_url: str) -> None:
        self._client = triton.InferenceServerClient(grpc_url)
        self._events: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._answers: dict[str, Answer] = {}
        self._client.start_stream(callback=lambda result, error: self._events.put((result, error)))

    def send(self, model: str, secret: str | None = None, **values: Any) -> Answer:
        answer = Answer(uuid.uuid4().hex)
        self._answers[answer.request_id] = answer
        inputs = [to_input(name, value) for name, value in values.items()]
        parameters = None if secret is None else {SESSION_SECRET_PARAMETER: secret}
        self._client.async_stream_infer(
            model, inputs, request_id=answer.request_id, enable_empty_final_response=True, parameters=parameters
        )
        return answer

    def receive(self, answer: Answer) -> Answer:
        """Wait for the final response of this request."""
        while not answer.finals:
            self.receive_one(answer)
        return answer

    def receive_one(self, blamed: Answer) -> None:
        """Take the next response. tritonclient drops the id of an error, which is therefore attributed to ``blamed``."""
        result, error = self._events.get(timeout=ANSWER_TIMEOUT_S)
        if error is not None:
            blamed.error = parse_error(error.message())
            blamed.errors += 1
            return
        response = result.get_response()
        answer = self._answers[response.id]
        outputs = {output.name: result.as_numpy(output.name) for output in response.outputs}
        if outputs:
            answer.outputs.append(outputs)
        answer.last_is_empty = not outputs
        answer.finals += response.parameters["triton_final_response"].bool_param

    def receive_error(self, answer: Answer) -> Answer:
        """Wait for an error that carries the final flag, which tritonclient hides."""
        while answer.error is None and not answer.finals:
            self.receive_one(answer)
        return answer

    def receive_audio(self, answer: Answer) -> None:
        """Wait for one more response with data."""
        count = len(answer.outputs)
        while len(answer.outputs) == count:
            assert answer.finals == 0 and answer.error is None, f"the session ended: {answer.error}"
            self.receive_one(answer)

    def stays_silent(self, seconds: float) -> bool:
        """Whether no response arrives for this long; one that does is kept."""
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return True
        self._events.put(event)
        return False

    def drop(self) -> None:
        """Break the connection as a dying client does."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close gracefully when no request is open: cancelling a stream at the moment of a response keeps the model from unloading."""
        if all(answer.finals or answer.error for answer in self._answers.values()):
            end_stream(self._client)
        else:
            self.drop()


def end_stream(client: triton.InferenceServerClient) -> None:
    """Half-close the stream of a client to whom everything has been answered, wait for the server to end it, and close the client."""
    closing = threading.Thread(target=client.stop_stream, daemon=True)  # it waits without a limit
    closing.start()
    closing.join(ANSWER_TIMEOUT_S)
    assert not closing.is_alive(), "the server has answered everything, and does not end the stream"
    client.close()


def ask(grpc_url: str, model: str, **values: Any) -> Answer:
    """One request on a stream of its own."""
    with Stream(grpc_url) as stream:
        return stream.receive(stream.send(model, **values))

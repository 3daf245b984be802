"""Requests as raw protocol messages, and their outcomes: every request must have one valid answer or an error with a code, in time."""

from __future__ import annotations

import queue
import re
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from bistream.client.server_errors import server_error
from bistream.contract.fields import CONTRACTS
from tests.triton.attacks.tensors import IDS, Request, bytes_tensor
from tests.triton.requests import to_input

SERVICE = "/inference.GRPCInferenceService"
ANSWER_TIMEOUT_S = 240.0  # decides nothing on a working server
PATIENCE_S = 0.25  # how long a session may go on before it is cancelled
FINAL = "triton_final_response"
INTERNALS = re.compile(r"Traceback|\.py\b|(?<![\w/])/(work|root|tmp|home|usr|opt|dev)/")
OUTPUTS = {(contract.name, spec.name): spec for contract in CONTRACTS for spec in contract.outputs}
NUMPY = {"FP32": np.float32, "INT32": np.int32, "BOOL": np.bool_}


def message(request: Request) -> Any:
    made = service_pb2.ModelInferRequest(model_name=request.model, id=uuid.uuid4().hex)
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, tensor in request.tensors.items():
        made.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        made.raw_input_contents.append(tensor.data)
    return made


def cancel(model: str, session_id: str) -> Any:
    made = message(Request(model, {"session_id": bytes_tensor(session_id)}))
    flag = to_input("is_cancel", True)
    made.inputs.append(flag._get_tensor())
    made.raw_input_contents.append(flag._get_content())
    return made


def coded(text: str) -> str:
    """The code of an error. Fails where it says nothing to the client, or too much."""
    error = server_error(text)
    assert error.code != "ENGINE_ERROR", text
    assert error.sentence and not INTERNALS.search(text), text
    return error.code


def valid(model: str, response: Any) -> str | None:
    """``answer``, the code of an error inside a language model's answer, or None where there is no data."""
    found = None
    for output, content in zip(response.outputs, response.raw_output_contents, strict=True):
        assert output.datatype == OUTPUTS[model, output.name].datatype
        if output.name == "error" and len(content) > 4:
            return coded(content[4:].decode())
        if output.datatype in NUMPY:
            array = np.frombuffer(content, NUMPY[output.datatype])
            assert array.size == np.prod(list(output.shape)) and np.isfinite(array).all()
            assert output.name != "waveform" or np.abs(array).max(initial=0.0) <= 0.99
        found = "answer"
    return found


class RawStream:
    """One stream and the outcome of every message sent on it: ``answer``, ``accepted`` (no data) or the code of its error."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._models: dict[str, str] = {}
        self._condition = threading.Condition()
        self.outcomes: dict[str, str] = {}
        self.open: list[str] = []  # ids without a final response, in order
        self.failure = ""
        call = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
        self._call = call(iter(self._requests.get, None), timeout=2 * ANSWER_TIMEOUT_S)
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, made: Any) -> None:
        with self._condition:
            self._models[made.id] = made.model_name
            self.open.append(made.id)
        self._requests.put(made.SerializeToString())

    def _read(self) -> None:
        try:
            for data in self._call:
                with self._condition:
                    self._take(service_pb2.ModelStreamInferResponse.FromString(data))
                    self._condition.notify_all()
        except (grpc.RpcError, AssertionError) as error:
            with self._condition:
                self.failure = repr(error)
                self._condition.notify_all()

    def _take(self, taken: Any) -> None:
        response = taken.infer_response
        request_id = response.id or next(iter(self.open), "")  # Triton's own refusals have no id
        if taken.error_message:
            self.outcomes[request_id] = coded(taken.error_message)
        elif (outcome := valid(self._models[request_id], response)) and self.outcomes.get(request_id, "answer") == "answer":
            self.outcomes[request_id] = outcome
        is_refused_by_triton = bool(taken.error_message) and FINAL not in response.parameters
        if response.parameters[FINAL].bool_param or is_refused_by_triton:
            assert request_id in self.open, "a second final response"
            self.open.remove(request_id)
            self.outcomes.setdefault(request_id, "accepted")

    def wait(self, seconds: float) -> bool:
        """Whether all have been answered by then. Fails where the stream broke."""
        with self._condition:
            self._condition.wait_for(lambda: not self.open or self.failure, seconds)
            assert not self.failure, self.failure
            return not self.open

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()


def converse(channel: grpc.Channel, requests: Sequence[Request], share_stream: bool) -> list[str]:
    """The outcomes of requests that are sent at once, on one stream or each on its own; their sessions are cancelled if they go on."""
    sent = [message(request) for request in requests]
    streams = [RawStream(channel)] if share_stream else [RawStream(channel) for _ in sent]
    ending = streams[0] if share_stream else RawStream(channel)
    try:
        for index, made in enumerate(sent):
            streams[index % len(streams)].send(made)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        wait_s = PATIENCE_S
        while not all([stream.wait(wait_s) for stream in streams]):
            assert time.monotonic() < deadline, f"no answer after {ANSWER_TIMEOUT_S:.0f} s"
            for session_id in IDS:
                ending.send(cancel(requests[0].model, session_id))
                wait_s = 1.0
        if not share_stream and _may_live(requests):
            for session_id in IDS:
                ending.send(cancel(requests[0].model, session_id))
            assert ending.wait(ANSWER_TIMEOUT_S)
        return [streams[index % len(streams)].outcomes[made.id] for index, made in enumerate(sent)]
    finally:
        for stream in {*streams, ending}:
            stream.close()


def _may_live(requests: Sequence[Request]) -> bool:
    """Whether a session may have outlived its answers: hops and pulled tokens do, in the inner models."""
    return any("session_id" in request.tensors for request in requests)


def call_once(channel: grpc.Channel, request: Request) -> str:
    """The outcome of a unary request."""
    try:
        data = channel.unary_unary(f"{SERVICE}/ModelInfer")(message(request).SerializeToString(), timeout=ANSWER_TIMEOUT_S)
    except grpc.RpcError as error:
        assert error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN), error
        return coded(error.details())
    return valid(request.model, service_pb2.ModelInferResponse.FromString(data)) or "accepted"

"""A real gRPC server in this process with scripted answers: the client is tested over the wire, not against a mock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self
from weakref import WeakKeyDictionary

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

SAMPLES_PER_CHARACTER = 480  # of a Reader: 20 ms at 24 kHz
_TYPES: dict[str, type] = {"BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}


@dataclass
class Received:
    """One request as the server sees it. inputs: bytes for BYTES, else arrays in their wire shape."""

    id: str
    model: str
    inputs: dict[str, Any]
    wants_empty_final: bool
    secret: str

    def flag(self, name: str) -> bool:
        return bool(self.inputs[name].reshape(-1)[0])


class Stream:
    """The answering side of one gRPC stream."""

    def __init__(self) -> None:
        self.responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.has_open_session = False  # a half-close does not end the stream then

    def audio(self, request_id: str, waveform: np.ndarray[Any, Any], number: int, consumed: int, position: int | None = None) -> None:
        """position: None: as a server that knows none."""
        response = self._response(request_id, is_final=False)
        numbers = {"sequence_number": number, "text_consumed": consumed, "text_position": position}
        for name, datatype, array in (
            ("waveform", "FP32", waveform.astype(np.float32).reshape(1, -1)),
            *((name, "INT32", np.array([[value]], np.int32)) for name, value in numbers.items() if value is not None),
        ):
            output = response.infer_response.outputs.add(name=name, datatype=datatype, shape=array.shape)
            del output
            response.infer_response.raw_output_contents.append(array.tobytes())
        self.responses.put(response)

    def final(self, request_id: str) -> None:
        self.responses.put(self._response(request_id, is_final=True))

    def error(self, request_id: str, message: str) -> None:
        """As Triton does it: an error message, and then the empty final response."""
        response = self._response(request_id, is_final=False)
        response.error_message = message
        self.responses.put(response)
        self.final(request_id)

    def _response(self, request_id: str, is_final: bool) -> Any:
        response = service_pb2.ModelStreamInferResponse()
        response.infer_response.id = request_id
        response.infer_response.parameters["triton_final_response"].bool_param = is_final
        return response


Behaviour = Callable[[Received, Stream], None]


class FakeServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # generated code has no types
    """behave: called for every request, in the stream's thread. card: parameters of the model's configuration."""

    card: Mapping[str, str] = MappingProxyType({})

    def __init__(self, behave: Behaviour, port: int = 0) -> None:
        self.behave = behave
        self.received: list[Received] = []
        self.stream_gone = threading.Event()
        self._server = grpc.server(
            ThreadPoolExecutor(256), options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        )
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        self._server.start()

    def ModelConfig(self, request: Any, context: Any) -> Any:
        answer = service_pb2.ModelConfigResponse()
        for name, text in self.card.items():
            answer.config.parameters[name].string_value = text
        return answer

    def ModelStreamInfer(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        stream = Stream()
        context.add_callback(self.stream_gone.set)
        context.add_callback(lambda: stream.responses.put(None))
        threading.Thread(target=self._read, args=(_until_gone(request_iterator), stream), daemon=True).start()
        while (response := stream.responses.get()) is not None:
            yield response

    def _read(self, requests: Iterator[Any], stream: Stream) -> None:
        for request in requests:
            received = decode(request)
            self.received.append(received)
            self.behave(received, stream)
        if not stream.has_open_session:
            stream.responses.put(None)

    def stop(self) -> None:
        self._server.stop(grace=None).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


Serve = Callable[[Behaviour], FakeServer]


def _until_gone(requests: Iterator[Any]) -> Iterator[Any]:
    """Ends where the client or the server goes: grpc then raises from the iterator, not always the same, and sometimes before it knows
    itself that the call is over. Only grpc's own code runs in there, so nothing else is hidden by that."""
    while True:
        try:
            request = next(requests)
        except Exception:  # StopIteration is one
            return
        yield request


def decode(request: Any) -> Received:
    inputs: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            inputs[tensor.name] = raw[4:]
        else:
            inputs[tensor.name] = np.frombuffer(raw, _TYPES[tensor.datatype]).reshape(tuple(tensor.shape))
    wants_final = request.parameters["triton_enable_empty_final_response"].bool_param
    return Received(request.id, request.model_name, inputs, wants_final, request.parameters["session_secret"].string_param)


class Speaker:
    """Sends 100 ms of audio per request with text and ends with the text. Keeps the id of the start, whose responses carry the audio."""

    def __init__(self) -> None:
        self.start_id = ""
        self.count = 0

    def __call__(self, request: Received, stream: Stream) -> None:
        if "is_cancel" in request.inputs:
            stream.audio(request.id, np.zeros(0), self.count, self.count, 2 * self.count)
            stream.final(request.id)
            stream.error(self.start_id, "CANCELLED: The session was cancelled by its client. [session x]")
            return
        if request.flag("is_start"):
            self.start_id = request.id
        else:
            stream.final(request.id)
        if request.inputs["target_text"]:
            stream.audio(self.start_id, np.full(2400, (self.count + 1) / 100), self.count, self.count + 1, 2 * self.count + 2)
            self.count += 1
        if request.flag("is_end"):
            stream.final(self.start_id)


class Speakers:
    """Every session of the server is spoken by a ``Speaker`` of its own, whichever stream it comes on."""

    def __init__(self) -> None:
        self._speakers: WeakKeyDictionary[Stream, Speaker] = WeakKeyDictionary()

    def __call__(self, request: Received, stream: Stream) -> None:
        for name in ("is_start", "is_end"):
            request.inputs.setdefault(name, np.array([[True]]))
        self._speakers.setdefault(stream, Speaker())(request, stream)


class Reader:
    """Speaks every piece at once: 20 ms for each character, which count as consumed. Ends with the text."""

    def __init__(self) -> None:
        self._texts: dict[tuple[bytes, str], list[Any]] = {}  # id of the start, chunks, characters

    def __call__(self, request: Received, stream: Stream) -> None:
        key = (request.inputs["session_id"], request.secret)
        if "is_cancel" in request.inputs:
            consumed = self._texts[key][2]
            stream.audio(request.id, np.zeros(0), 0, consumed, consumed)
            stream.final(request.id)
            stream.error(self._texts[key][0], "CANCELLED: The session was cancelled by its client.")
            return
        if request.flag("is_start"):
            self._texts[key] = [request.id, 0, 0]
        else:
            stream.final(request.id)
        state = self._texts[key]
        text = request.inputs["target_text"].decode("utf-8")
        if text:
            state[2] += len(text)
            stream.audio(state[0], np.full(SAMPLES_PER_CHARACTER * len(text), 0.25), state[1], state[2], state[2])
            state[1] += 1
        if request.flag("is_end"):
            stream.final(state[0])

"""A server that answers like ``cosyvoice2_bistream`` without computing: for ``benchmarks/fronts.py`` and the tests of Envoy.

    python benchmarks/_gateway_stub.py PORT

A start is answered with 400 ms of audio at once, every further piece with its empty final response where it asks for one, every fourth also
with 400 ms of audio: 10 pieces and 2.5 chunks per second are one caller in real time. Ready at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2

SERVICE = "inference.GRPCInferenceService"
SAMPLES = 9600  # 400 ms
PIECES_PER_CHUNK = 4
AUDIO = (0.1 * np.sin(np.arange(SAMPLES) * 0.1)).astype(np.float32).tobytes()  # encoders take longer for sound than for silence


async def serve(port: int, methods: Mapping[str, Any], *options: tuple[str, int]) -> None:
    """Answer on loopback until the end of the process. methods: handlers of grpc by name."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *options])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, dict(methods)),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def response(request_id: str, final: bool, waveform: bytes = b"") -> bytes:
    message = service_pb2.ModelStreamInferResponse()
    answer = message.infer_response
    answer.model_name, answer.id = "cosyvoice2_bistream", request_id
    answer.parameters["triton_final_response"].bool_param = final
    if waveform:
        for name, datatype, shape, raw in (
            ("waveform", "FP32", (1, SAMPLES), waveform),
            ("sequence_number", "INT32", (1, 1), b"\0\0\0\0"),
            ("text_consumed", "INT32", (1, 1), b"\0\0\0\0"),
        ):
            answer.outputs.add(name=name, datatype=datatype, shape=shape)
            answer.raw_output_contents.append(raw)
    data: bytes = message.SerializeToString()
    return data


async def stream(requests: Any, context: Any) -> None:
    start, pieces = "", 0
    while (data := await context.read()) is not grpc.aio.EOF:
        request = service_pb2.ModelInferRequest.FromString(data)
        inputs = {tensor.name: raw for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)}
        if inputs["is_start"] == b"\1":
            start = request.id
            await context.write(response(start, False, AUDIO))
        else:
            pieces += 1
            if request.parameters["triton_enable_empty_final_response"].bool_param:
                await context.write(response(request.id, True))
            if pieces % PIECES_PER_CHUNK == 0:
                await context.write(response(start, False, AUDIO))
        if inputs["is_end"] == b"\1":
            await context.write(response(start, True))


async def ready(data: bytes, context: Any) -> bytes:
    answer: bytes = service_pb2.ServerReadyResponse(ready=True).SerializeToString()  # and ModelReadyResponse: they are alike
    return answer


if __name__ == "__main__":
    is_ready = grpc.unary_unary_rpc_method_handler(ready)
    handlers = {"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream), "ServerReady": is_ready, "ModelReady": is_ready}
    uvloop.run(serve(int(sys.argv[1]), handlers, ("grpc.max_receive_message_length", -1)))

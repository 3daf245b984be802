"""The calls of upstream's clients (FunAudioLLM/CosyVoice and SparkAudio/Spark-TTS, runtime/triton_trtllm/client_grpc.py and
client_http.py): the same methods of ``tritonclient``, tensors, padding, ids and JSON, and the same way to read the answers.

model: ``cosyvoice2``, ``cosyvoice3`` or ``spark_tts``, as their option ``--model-name`` says."""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import urllib.request
import uuid
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from tests.triton.requests import end_stream

MODEL = "cosyvoice2"
MODEL3 = "cosyvoice3"  # the default of client_http.py
SPARK_MODEL = "spark_tts"
SPARK_FADE = 1600  # samples; --chunk-overlap-duration 0.1
SAMPLE_RATE = 16000
STREAMING_PADDING_S, OFFLINE_PADDING_S = 10, 1
ANSWER_TIMEOUT_S = 240.0  # decides nothing on a working server


def tensors(client: Any, waveform: NDArray[np.float32], transcript: str, text: str, padding_s: int) -> list[Any]:
    """client: the module of ``tritonclient``. The recording is padded to where the audio is estimated to end."""
    duration_s = waveform.size / SAMPLE_RATE
    spoken_s = duration_s / len(transcript) * len(text) if transcript else duration_s
    blocks = int(duration_s + spoken_s) // padding_s + 1
    samples = np.zeros((1, padding_s * SAMPLE_RATE * blocks), np.float32)
    samples[0, : waveform.size] = waveform
    values = {
        "reference_wav": samples,
        "reference_wav_len": np.array([[waveform.size]], np.int32),
        "reference_text": np.array([[transcript]], object),
        "target_text": np.array([[text]], object),
    }
    inputs = []
    for name, value in values.items():
        tensor = client.InferInput(name, value.shape, np_to_triton_dtype(value.dtype))
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs


def cross_faded(chunks: list[NDArray[np.float32]], fade: int = SPARK_FADE) -> NDArray[np.floating[Any]]:
    """What Spark-TTS's client plays: each chunk but the last without its end, which the beginning of the next one is faded into."""
    if len(chunks) == 1:
        return chunks[0]
    rising = np.linspace(0, 1, fade)
    played: list[NDArray[Any]] = [chunks[0][:-fade]]
    for before, chunk in itertools.pairwise(chunks):
        played += [chunk[:fade] * rising + before[-fade:] * np.linspace(1, 0, fade), chunk[fade:-fade]]
    return np.concatenate([*played, chunks[-1][-fade:]])


def stream_each(
    url: str, waveform: NDArray[np.float32], transcript: str, texts: list[str], model: str = MODEL
) -> list[NDArray[np.float32]]:
    return [np.concatenate(chunks) for chunks in stream_chunks(url, waveform, transcript, texts, model)]


def stream_chunks(
    url: str, waveform: NDArray[np.float32], transcript: str, texts: list[str], model: str = MODEL
) -> list[list[NDArray[np.float32]]]:
    """One text after the other on one stream. The response with the final flag is not looked at for audio."""
    client = triton.InferenceServerClient(url=url, verbose=False)
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put(error or result))
    spoken = []
    for text in texts:
        inputs = tensors(triton, waveform, transcript, text, STREAMING_PADDING_S)
        outputs = [triton.InferRequestedOutput("waveform")]
        client.async_stream_infer(model, inputs, request_id=str(uuid.uuid4()), outputs=outputs, enable_empty_final_response=True)
        chunks = []
        while True:
            answer = answers.get(timeout=ANSWER_TIMEOUT_S)
            if isinstance(answer, Exception):
                raise answer
            if answer.get_response().parameters["triton_final_response"].bool_param:
                break
            chunks.append(answer.as_numpy("waveform").reshape(-1))
        spoken.append(chunks)
    end_stream(client)
    return spoken


def ask_statistics(url: str, model: str = MODEL) -> int:
    """What the benchmark asks before and after its requests, of all models in one question; the number of requests so far."""

    async def ask() -> int:
        client = triton_aio.InferenceServerClient(url=url, verbose=False)
        statistics = await client.get_inference_statistics(model_name="", as_json=True)
        config = await client.get_model_config(model_name=model, as_json=True)
        await client.close()
        served = config["config"]["name"]
        assert served == (MODEL if model == MODEL3 else model)
        (found,) = [one for one in statistics["model_stats"] if one["name"] == served]
        return int(found.get("inference_stats", {}).get("success", {}).get("count", 0))

    return asyncio.run(ask())


def infer_offline(url: str, waveform: NDArray[np.float32], transcript: str, text: str, model: str = MODEL) -> NDArray[np.float32]:
    async def infer() -> NDArray[np.float32]:
        client = triton_aio.InferenceServerClient(url=url, verbose=False)
        inputs = tensors(triton_aio, waveform, transcript, text, OFFLINE_PADDING_S)
        outputs = [triton_aio.InferRequestedOutput("waveform")]
        response = await client.infer(model, inputs, request_id="100000000", outputs=outputs)
        await client.close()
        audio: NDArray[np.float32] = response.as_numpy("waveform").reshape(-1)
        return audio

    return asyncio.run(infer())


def ask_over_http(server: str, waveform: NDArray[np.float32], transcript: str, text: str, model: str = MODEL) -> NDArray[np.float32]:
    """Without padding, every sample as a decimal number of full length."""
    data = {
        "inputs": [
            {"name": "reference_wav", "shape": [1, waveform.size], "datatype": "FP32", "data": waveform.reshape(1, -1).tolist()},
            {"name": "reference_wav_len", "shape": [1, 1], "datatype": "INT32", "data": [[waveform.size]]},
            {"name": "reference_text", "shape": [1, 1], "datatype": "BYTES", "data": [transcript]},
            {"name": "target_text", "shape": [1, 1], "datatype": "BYTES", "data": [text]},
        ]
    }
    request = urllib.request.Request(
        f"http://{server}/v2/models/{model}/infer?request_id=0",
        data=json.dumps(data).encode(),
        headers={"Content-Type": "application/json", "Accept-Encoding": "gzip, deflate", "Accept": "*/*"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:
        answer = json.load(response)
    return np.array(answer["outputs"][0]["data"], np.float32)

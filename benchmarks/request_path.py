"""What lies between a caller and the networks, alone: the real server, whose networks only take their time (``_timed_networks``). No GPU.

    python benchmarks/request_path.py [--requests 200] [--out benchmarks/results/request-path-2cores.json]

Milliseconds at 10, 50 and 90 %. On a machine with other work the first is the closest to an idle one.

- connection: a new connection to the gate, until it has answered a first small call
- piece: an empty piece of a live session, until it is acknowledged; to Triton itself, then through the gate
- first audio: a whole short text with a registered voice, less the time of the networks: to Triton and through the gate on a
  connection that is kept, then through the gate with one for each session, as ``BistreamClient`` has it. By stage: what the server
  recorded of those through the gate.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tritonclient.grpc as triton

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import percentiles, report, table
from benchmarks._scrape import Between, scrape
from benchmarks._server import ROOT, SPEAKER, Server, ServerPlan, make_repository, register_voice
from benchmarks.first_audio import budget
from benchmarks.orchestration import NOT_SPEECH, PROBE_TEXT, ideal_first_audio_s, replace_networks
from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.client import BistreamClient, infer_input
from bistream.contract.fields import COSYVOICE2_BISTREAM

RANKS = (10, 50, 90)
TRITON_LISTENS = re.compile(r'Started GRPCInferenceService at (\S+)"')


def connection_ms(address: str, requests: int) -> list[float]:
    def connect() -> None:
        with triton.InferenceServerClient(address) as client:
            client.is_server_live()

    return [timed(connect) for _ in range(requests)]


def piece_ms(address: str, requests: int) -> list[float]:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    session_id = uuid.uuid4().hex
    with triton.InferenceServerClient(address) as client:
        client.start_stream(callback=lambda result, error: answers.put(error or result.get_response().id))

        def send(number: int, **values: object) -> None:
            inputs = [infer_input(name, value) for name, value in {"session_id": session_id, "is_end": False, **values}.items()]
            client.async_stream_infer(COSYVOICE2_BISTREAM.name, inputs, request_id=str(number), enable_empty_final_response=True)

        def piece(number: int) -> None:
            send(number, target_text=b"", is_start=False)
            while (answer := answers.get(timeout=60.0)) != str(number):
                if not isinstance(answer, str):
                    raise answer

        send(0, target_text=b"", speaker_id=SPEAKER)
        taken = [timed(partial(piece, number)) for number in range(1, requests + 1)]
        client.stop_stream(cancel_requests=True)
    return taken


def first_audio_ms(address: str, requests: int) -> list[float]:
    """On one connection."""

    async def speak(client: AsyncBistreamClient) -> float:
        began = time.monotonic()
        async with client.start(text=PROBE_TEXT, is_end=True, speaker_id=SPEAKER) as session:
            arrived = [chunk.arrived_at async for chunk in session]
        return 1000 * (arrived[0] - began)

    async def speak_all() -> list[float]:
        client = AsyncBistreamClient(address, keeps_channel=True)
        try:
            return [await speak(client) for _ in range(requests)]
        finally:
            await client.close()

    return beyond_networks(asyncio.run(speak_all()))


def first_audio_anew_ms(address: str, requests: int) -> list[float]:
    """Each on a connection of its own."""
    client = BistreamClient(address)
    taken = []
    for _ in range(requests):
        began = time.monotonic()
        with client.start(text=PROBE_TEXT, is_end=True, speaker_id=SPEAKER) as session:
            arrived = [chunk.arrived_at for chunk in session]
        taken.append(1000 * (arrived[0] - began))
    return beyond_networks(taken)


def timed(call: Callable[[], None]) -> float:
    began = time.monotonic()
    call()
    return 1000 * (time.monotonic() - began)


def beyond_networks(taken: list[float]) -> list[float]:
    return [value - 1000 * ideal_first_audio_s() for value in taken]


def measure(gate: str, server: str, metrics: str, requests: int) -> dict[str, Any]:
    first_audio_ms(gate, 3)  # reads the voice, and warms what a first session warms
    taken = {
        "connection": connection_ms(gate, requests),
        "piece, Triton": piece_ms(server, requests),
        "piece, gate": piece_ms(gate, requests),
        "first audio, Triton": first_audio_ms(server, requests),
    }
    before = scrape(metrics)
    taken["first audio, gate"] = first_audio_ms(gate, requests)
    between = Between(before, scrape(metrics))
    taken["first audio, gate, new connection"] = first_audio_anew_ms(gate, requests)
    return {"ms": {name: percentiles(values, *RANKS) for name, values in taken.items()}, "stages_ms": budget(between)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="of each kind (default %(default)s)")
    parser.add_argument("--health-port", type=int, default=8003, help="where the server shows its metrics (default %(default)s)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "request_path", help="logs, checkpoint, repository, voice")
    parser.add_argument("--out", help="also write the result to this file")
    options = parser.parse_args()
    work = options.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    voices = work / "voices"
    repository = make_repository(ServerPlan("plain", "tiny", None, (), 16), work, environment, {"voices_dir": str(voices)})
    register_voice(work.parent / "checkpoint-tiny", voices, environment)
    replace_networks(repository)
    more = (*NOT_SPEECH, "--health-port", str(options.health_port))
    with Server(repository, work, environment, "server", more) as server:
        listens = TRITON_LISTENS.findall((work / "server.log").read_text(encoding="utf-8"))[-1]
        metrics = measure(server.grpc, listens, f"http://localhost:{options.health_port}/metrics", options.requests)
    table([("ms", *(f"p{rank}" for rank in RANKS)), *((name, *values.values()) for name, values in metrics["ms"].items())])
    table([("stage", "mean ms"), *((name, values["mean"]) for name, values in metrics["stages_ms"].items())])
    config = {"requests": options.requests, "networks_ms": round(1000 * ideal_first_audio_s(), 2), "text": PROBE_TEXT}
    report("request_path", torch.device("cpu"), config, metrics, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

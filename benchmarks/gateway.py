"""What the gate costs: callers in real time against a server that computes nothing, with the gate between them and without.

    python benchmarks/gateway.py [--sessions 1 64 256] [--seconds 10] [--out FILE]

Every caller sends 10 text pieces per second and receives 2.5 chunks of 400 ms. Prints, for each number of callers, the time to the first
audio and to the acknowledgement of a piece (p50 and p99, direct and through the gate), and the cores that the gate keeps busy. The last
line is one JSON object. Server, gate and callers share the machine: with fewer than four idle cores only the CPU share means something.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import torch
import uvloop
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ROOT, percentiles, report, table

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
PIECES_PER_SECOND = 10
AUDIO_BYTES = 1000  # a longer message is audio


@dataclass
class Times:
    """Milliseconds."""

    first_audio: list[float] = field(default_factory=list)
    acknowledgement: list[float] = field(default_factory=list)


def request(number: int, is_end: bool) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="cosyvoice2_bistream", id=f"caller.{number}")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, datatype, raw in (
        ("target_text", "BYTES", b"\6\0\0\0lo wor"),
        ("session_id", "BYTES", b"\x20\0\0\0" + 32 * b"a"),
        ("is_start", "BOOL", b"\0" if number else b"\1"),
        ("is_end", "BOOL", b"\1" if is_end else b"\0"),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=(1, 1))
        message.raw_input_contents.append(raw)
    data: bytes = message.SerializeToString()
    return data


async def call(port: int, delay_s: float, seconds: float, times: Times) -> None:
    """One caller with a connection of its own."""
    await asyncio.sleep(delay_s)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        await channel.channel_ready()
        stream: Any = channel.stream_stream(METHOD)()
        sent_at = time.perf_counter()

        async def listen() -> None:
            while (data := await stream.read()) is not grpc.aio.EOF:
                elapsed_ms = 1000 * (time.perf_counter() - sent_at)
                if len(data) < AUDIO_BYTES:
                    times.acknowledgement.append(elapsed_ms)
                elif not heard:
                    times.first_audio.append(elapsed_ms)
                    heard.append(True)

        heard: list[bool] = []
        await stream.write(request(0, False))
        listener = asyncio.create_task(listen())
        began, count = time.perf_counter(), int(seconds * PIECES_PER_SECOND)
        for number in range(1, count):
            await asyncio.sleep(max(0.0, began + number / PIECES_PER_SECOND - time.perf_counter()))
            sent_at = time.perf_counter()
            await stream.write(request(number, number == count - 1))
        await stream.done_writing()
        await listener


async def load(port: int, sessions: int, seconds: float, pid: int) -> tuple[Times, float]:
    """The callers' times, and the cores that process ``pid`` kept busy while all of them spoke."""
    times = Times()
    calls = [asyncio.create_task(call(port, number / sessions, seconds, times)) for number in range(sessions)]
    await asyncio.sleep(1.2)
    cpu_s, began = cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds - 2.0)
    cores = (cpu_seconds(pid) - cpu_s) / (time.perf_counter() - began)
    await asyncio.gather(*calls)
    return times, cores


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, stderr=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


def wait_until_ready(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        deadline = time.monotonic() + 30
        while True:
            try:
                if service_pb2.ServerReadyResponse.FromString(ask(b"", timeout=1, wait_for_ready=True)).ready:
                    return
            except grpc.RpcError:
                pass
            assert time.monotonic() < deadline, "not ready"
            time.sleep(0.05)


def measure(sessions: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Direct and through the gate, in turn, so that both see the same machine."""
    direct, gated, cores = Times(), Times(), []
    stub_port, gate_port = free_port(), free_port()
    words = ("-m", "gateway", "--upstream", f"127.0.0.1:{stub_port}", "--grpc-port", str(gate_port), "--starts-per-second", "0")
    with process("benchmarks/_gateway_stub.py", str(stub_port)) as stub, process(*words, "--sessions-per-address", "0") as gate:
        wait_until_ready(stub_port)
        wait_until_ready(gate_port)
        for _ in range(rounds):
            for port, pid, times in ((stub_port, stub.pid, direct), (gate_port, gate.pid, gated)):
                new, busy = uvloop.run(load(port, sessions, seconds, pid))
                times.first_audio += new.first_audio
                times.acknowledgement += new.acknowledgement
                if port == gate_port:
                    cores.append(busy)
    return {
        "sessions": sessions,
        "cores": round(sum(cores) / len(cores), 3),
        "first_audio_ms": {"direct": percentiles(direct.first_audio, 50, 99), "gate": percentiles(gated.first_audio, 50, 99)},
        "acknowledgement_ms": {"direct": percentiles(direct.acknowledgement, 50, 99), "gate": percentiles(gated.acknowledgement, 50, 99)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--seconds", type=float, default=10.0, help="of every caller (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    results = [measure(sessions, options.seconds, options.rounds) for sessions in options.sessions]
    rows: list[list[object]] = [["sessions", "cores", "first audio p50/p99 ms", "with gate", "acknowledgement p50/p99 ms", "with gate"]]
    for result in results:
        cells = [result[what][how] for what in ("first_audio_ms", "acknowledgement_ms") for how in ("direct", "gate")]
        rows.append([result["sessions"], result["cores"], *(f"{cell['p50']:.2f} / {cell['p99']:.2f}" for cell in cells)])
    table(rows)
    config = {"pieces_per_second": PIECES_PER_SECOND, "seconds": options.seconds, "rounds": options.rounds}
    report("gateway", torch.device("cpu"), config, {"load": results}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

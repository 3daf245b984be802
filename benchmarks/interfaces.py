"""What the interfaces for voice agents cost: callers before a server that computes nothing, with the interfaces between them and without.

    python benchmarks/interfaces.py [--only first-audio real-time mp3 gone idle growth] [--out FILE]

- first-audio: 100 callers in real time (10 pieces a second in, 2.5 chunks of 400 ms out, turns of 4 s) over Deepgram's protocol, and the
  same straight to the server, in turn; the differences of p50 and p99 are what is added.
- real-time: 256 of them with binary audio; the cores that the process keeps busy.
- mp3: 576 callers with whole texts over OpenAI's protocol. One process cannot encode so much in real time, so the server speaks slower;
  the cores are the CPU seconds for a second of audio, times the callers. Memory is that of 576 encoders.
- gone: how long after a caller's connection is cut in the middle of its audio the utterance is freed (``/metrics`` is asked until it says
  so, so that the time of the question is in it).
- idle: memory of 2,000 open WebSockets. growth: memory after 1,000 and after 10,000 sessions one after another, half HTTP, half WebSocket.

The process is pinned to one core (--core), server and callers to the others. Cores are CPU seconds of the process, user and system, by the
wall clock. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import uvloop
from websockets.asyncio.client import connect

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import percentiles, report
from benchmarks._interfaces_callers import SPEAK, Heard, call_server, call_socket, page, post_speech, short_turn
from benchmarks.gateway import free_port, process

START_TIMEOUT_S = 60.0
TURN_S = 4.0
MP3_PACE = 0.1
CHARACTERS_PER_S = 12.5  # of the stub
BYTES_PER_S = 48000  # PCM16
NO_LIMITS = ("--share", "1", "--starts-per-second", "0")


@dataclass(frozen=True)
class Front:
    """The process that is measured, and the server behind it."""

    url: str
    server: str
    pid: int

    @property
    def socket_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="utf-8").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def front(core: int, pace: float = 1.0) -> Iterator[Front]:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        ready = Path(folder, "ready")
        command = ["-m", "interfaces", "--server", f"127.0.0.1:{port}", "--speaker", "anna", "--port", "0", "--ready-file", str(ready)]
        with (
            process("benchmarks/_gateway_stub.py", str(port), str(pace)),
            process(*command, *NO_LIMITS) as measured,
        ):
            os.sched_setaffinity(measured.pid, {core})
            wait_for(ready.exists, "the interfaces have not started")
            yield Front(ready.read_text(encoding="utf-8"), f"127.0.0.1:{port}", measured.pid)


def wait_for(condition: Callable[[], Any], failure: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(0.05)
    time.sleep(0.5)  # for the first check of the server


async def in_real_time(found: Front, is_direct: bool, callers: int, seconds: float) -> tuple[Heard, float]:
    """What was heard, and the cores that were busy while all of them spoke."""
    heard, turns = Heard(), max(1, round(seconds / TURN_S))
    call, url = (call_server, found.server) if is_direct else (call_socket, found.socket_url)
    gc.freeze()  # a collection here would look like a delay there
    calls = [asyncio.create_task(call(url, TURN_S * number / callers, turns, TURN_S, heard)) for number in range(callers)]
    await asyncio.sleep(TURN_S + 1.0)
    cpu_s, began = found.cpu_s(), time.perf_counter()
    await asyncio.sleep(max(1.0, (turns - 1) * TURN_S - 1.0))
    cores = (found.cpu_s() - cpu_s) / (time.perf_counter() - began)
    await asyncio.gather(*calls)
    assert heard.failures == 0, "turns have failed"
    return heard, cores


def first_audio(core: int, rounds: int) -> dict[str, Any]:
    direct: list[float] = []
    through: list[float] = []
    late_ms = 0.0
    with front(core) as found:
        for _ in range(rounds):
            for is_direct, times in ((True, direct), (False, through)):
                heard, _ = uvloop.run(in_real_time(found, is_direct, 100, 16.0))
                times += heard.first_audio_ms
                late_ms = max(late_ms, heard.late_ms)
    server, with_front = percentiles(direct, 50, 99), percentiles(through, 50, 99)
    added = {rank: round(with_front[rank] - server[rank], 3) for rank in server}
    return {"callers": 100, "turns": len(through), "direct_ms": server, "with_interfaces_ms": with_front, "added_ms": added,
            "callers_late_ms": round(late_ms, 1)}  # fmt: skip


def real_time(core: int, rounds: int) -> dict[str, Any]:
    with front(core) as found:
        runs = [uvloop.run(in_real_time(found, False, 256, 16.0)) for _ in range(rounds)]
    cores = [round(busy, 3) for _, busy in runs]
    pieces = runs[0][0].pieces
    return {"callers": 256, "cores": cores, "cores_lowest": min(cores), "pieces": pieces,
            "first_audio_ms": percentiles(runs[0][0].first_audio_ms, 50, 99), "callers_late_ms": round(runs[0][0].late_ms, 1)}  # fmt: skip


def mp3(core: int, rounds: int) -> dict[str, Any]:
    text_s = 8.0
    text = "word " * round(CHARACTERS_PER_S * text_s / 5)
    with front(core, MP3_PACE) as found:
        where = urlsplit(found.url)
        before_mb, most_mb, costs = found.resident_mb(), 0.0, []

        async def run() -> None:
            nonlocal most_mb
            heard, cpu_s = Heard(), found.cpu_s()
            calls = [asyncio.create_task(post_speech(str(where.hostname), int(where.port or 0), text, "mp3", heard)) for _ in range(576)]
            left = set(calls)
            while left:
                _, left = await asyncio.wait(left, timeout=1.0)
                most_mb = max(most_mb, found.resident_mb())
            await asyncio.gather(*calls)
            assert heard.failures == 0, "responses have failed"
            costs.append((found.cpu_s() - cpu_s) / (576 * text_s))

        for _ in range(rounds):
            uvloop.run(run())
    cost = min(costs)
    return {"callers": 576,
            "cpu_ms_per_audio_s": [round(1000 * one, 2) for one in costs],
            "cores_for_576_in_real_time": round(576 * cost, 2),
            "resident_mb": round(most_mb), "before_mb": round(before_mb)}  # fmt: skip


def gone(core: int, rounds: int) -> dict[str, Any]:
    times: list[float] = []

    async def run(found: Front) -> None:
        where = urlsplit(found.url)
        for _ in range(100):
            async with connect(found.socket_url + SPEAK, compression=None) as caller:
                await caller.send('{"type": "Speak", "text": "lo wor"}')
                while not isinstance(await caller.recv(), bytes):
                    pass
                began = time.perf_counter()
                caller.transport.abort()
                while b"bistream_interfaces_utterances 0" not in await page(str(where.hostname), int(where.port or 0), "/metrics"):
                    pass
                times.append(1000 * (time.perf_counter() - began))

    with front(core) as found:
        uvloop.run(run(found))
    return {"callers": len(times), "freed_after_ms": percentiles(times, 50, 99, 100)}


def idle(core: int, rounds: int) -> dict[str, Any]:
    with front(core) as found:
        before_mb = found.resident_mb()

        async def run() -> float:
            async with AsyncExitStack() as stack:
                for _ in range(2000):
                    await stack.enter_async_context(connect(found.socket_url + SPEAK, compression=None))
                await asyncio.sleep(1.0)
                return found.resident_mb()

        after_mb = uvloop.run(run())
    return {
        "sockets": 2000,
        "before_mb": round(before_mb, 1),
        "resident_mb": round(after_mb, 1),
        "sockets_mb": round(after_mb - before_mb, 1),
    }


def growth(core: int, rounds: int) -> dict[str, Any]:
    sizes = {}
    with front(core) as found:
        where = urlsplit(found.url)

        async def run() -> None:
            heard = Heard()
            for number in range(1, 10_001):
                if number % 2:
                    await short_turn(found.socket_url, heard)
                else:
                    await post_speech(str(where.hostname), int(where.port or 0), "Hello.", "mp3", heard)
                if number in (1000, 2000, 5000, 10_000):
                    sizes[str(number)] = round(found.resident_mb(), 1)
            assert heard.failures == 0, f"{heard.failures} sessions have failed"

        uvloop.run(run())
    return {"sessions": 10_000, "resident_mb_after": sizes}


PARTS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "first-audio": first_audio, "real-time": real_time, "mp3": mp3, "gone": gone, "idle": idle, "growth": growth,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="of the first three (default %(default)s)")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="of the measured process (default %(default)s)")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    others = os.sched_getaffinity(0) - {options.core}
    if others:
        os.sched_setaffinity(0, others)
    metrics: dict[str, Any] = {}
    for name in options.only:
        metrics[name] = PARTS[name](options.core, options.rounds)
        metrics[name]["load_average"] = round(os.getloadavg()[0], 1)
        print(name, metrics[name], flush=True)
    report("interfaces", torch.device("cpu"), {"rounds": options.rounds, "turn_s": TURN_S, "mp3_pace": MP3_PACE}, metrics, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

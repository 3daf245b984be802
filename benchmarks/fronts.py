"""The cost of the processes in front of a server: callers in real time, through one of them and without it, while the server is a stub.

    python benchmarks/fronts.py gate [--sessions 1 64 256] [--seconds 9] [--spread-s 1] [--rounds 3] [--out FILE]
    python benchmarks/fronts.py envoy             before two gates, each with its server; without: straight to the first gate
    python benchmarks/fronts.py interfaces        callers over Deepgram's protocol; without: straight to the server

Every caller sends 10 text pieces per second and receives 2.5 chunks of 400 ms. A round goes both ways, so that both see the same machine.
Prints, for each number of callers, the time to the first audio and to the acknowledgement of a piece (p50 and p99; interfaces have none),
and the cores that the process keeps busy. The last line is one JSON object. Servers, processes and callers share the machine: with
fewer idle cores than processes only the CPU share means something.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import uvloop
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ROOT, free_port, percentiles, report, table
from benchmarks._front_callers import PIECES_PER_SECOND, SERVICE, START_TIMEOUT_S, Times, call_interfaces, call_server
from benchmarks._server import MANY_CALLERS
from bistream.keeper.envoy_config import ProxySettings, ServerAddress, envoy_config
from bistream.keeper.host import LOOPBACK
from scripts.serve_gpus import find_envoy

SESSIONS_OF_GATE = "bistream_gate_sessions_total "
Call = Callable[[str, float, Times], Awaitable[None]]  # address, seconds, measurements


@dataclass(frozen=True)
class Front:
    """through, direct: addresses. gates: metrics pages of the gates behind Envoy."""

    pid: int
    through: str
    direct: str
    call: Call
    gates: tuple[str, ...] = ()


async def load(call: Call, address: str, sessions: int, pid: int, options: argparse.Namespace) -> tuple[Times, float]:
    """The callers' times, and the cores that process ``pid`` kept busy while all of them spoke."""
    times = Times()
    seconds = options.spread_s + options.seconds

    async def begin(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await call(address, seconds, times)

    calls = [asyncio.create_task(begin(options.spread_s * number / sessions)) for number in range(sessions)]
    await asyncio.sleep(options.spread_s + 0.2)
    cpu_s, began = cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(max(0.5, options.seconds - 1.0))
    cores = (cpu_seconds(pid) - cpu_s) / (time.perf_counter() - began)
    await asyncio.gather(*calls)
    return times, cores


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The fronts


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(words, cwd=ROOT) as started:
        try:
            yield started
        finally:
            started.kill()


def python(stack: ExitStack, *words: str) -> subprocess.Popen[bytes]:
    return stack.enter_context(process(sys.executable, *words))


def wait_until_ready(port: int) -> None:
    def is_ready() -> bool:
        try:
            return bool(service_pb2.ServerReadyResponse.FromString(ask(b"", timeout=1, wait_for_ready=True)).ready)
        except grpc.RpcError:
            return False

    with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        ask = channel.unary_unary(f"{SERVICE}/ServerReady")
        wait_for(is_ready)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"A process was not ready within {START_TIMEOUT_S:g} s; its own messages say why.")
        time.sleep(0.05)


def server(stack: ExitStack) -> int:
    port = free_port()
    python(stack, "benchmarks/_gateway_stub.py", str(port))
    wait_until_ready(port)
    return port


def gate_before(stack: ExitStack, upstream: int) -> tuple[ServerAddress, int]:
    grpc_port, http_port = free_port(), free_port()
    ports = ("--grpc-port", str(grpc_port), "--http-port", str(http_port))
    started = python(stack, "-m", "gateway", "--upstream", f"{LOOPBACK}:{upstream}", *ports, *MANY_CALLERS)
    wait_until_ready(grpc_port)
    return ServerAddress(LOOPBACK, grpc_port, http_port, health_port=http_port), started.pid


def gate(stack: ExitStack) -> Front:
    inner = server(stack)
    address, pid = gate_before(stack, inner)
    return Front(pid, f"{LOOPBACK}:{address.grpc_port}", f"{LOOPBACK}:{inner}", call_server)


def envoy(stack: ExitStack) -> Front:
    addresses = [gate_before(stack, server(stack))[0] for _ in range(2)]
    settings = ProxySettings(LOOPBACK, free_port(), LOOPBACK, free_port(), free_port())
    config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "envoy.yaml"
    config.write_text(envoy_config(settings, addresses), encoding="utf-8")
    words = ("-c", str(config), "--concurrency", "2", "--disable-hot-restart", "--log-level", "error")
    started = stack.enter_context(process(str(find_envoy(None)), *words))
    wait_until_ready(settings.grpc_port)
    gates = tuple(f"http://{LOOPBACK}:{address.http_port}/metrics" for address in addresses)
    return Front(started.pid, f"{LOOPBACK}:{settings.grpc_port}", f"{LOOPBACK}:{addresses[0].grpc_port}", call_server, gates)


def interfaces(stack: ExitStack) -> Front:
    inner, ready = server(stack), Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ready"
    words = ("--server", f"{LOOPBACK}:{inner}", "--speaker", "anna", "--port", "0", "--ready-file", str(ready))
    started = python(stack, "-m", "interfaces", *words, "--share", "1", "--starts-per-second", "0")
    wait_for(ready.exists)
    time.sleep(0.5)  # for the first check of the server
    return Front(started.pid, ready.read_text(encoding="utf-8").replace("http", "ws", 1), f"{LOOPBACK}:{inner}", call_interfaces)


FRONTS = {"gate": gate, "envoy": envoy, "interfaces": interfaces}


def sessions_of(gates: Sequence[str]) -> list[int]:
    """Sessions of each gate since its start."""
    found = []
    for url in gates:
        with urllib.request.urlopen(url, timeout=10) as page:
            lines = page.read().decode().splitlines()
        found.append(int(float(next((line for line in lines if line.startswith(SESSIONS_OF_GATE)), "0").split()[-1])))
    return found


def measure(sessions: int, options: argparse.Namespace) -> dict[str, Any]:
    ways, cores, callers = {"direct": Times(), "through": Times()}, [], []
    with ExitStack() as stack:
        front = FRONTS[options.front](stack)
        callers = [0] * len(front.gates)
        for _ in range(options.rounds):
            ways["direct"].add(uvloop.run(load(call_server, front.direct, sessions, front.pid, options))[0])
            before = sessions_of(front.gates)
            times, busy = uvloop.run(load(front.call, front.through, sessions, front.pid, options))
            ways["through"].add(times)
            cores.append(busy)
            callers = [sum_ + now - then for sum_, now, then in zip(callers, sessions_of(front.gates), before, strict=True)]
    found: dict[str, Any] = {"sessions": sessions, "cores": round(sum(cores) / len(cores), 3)}
    found |= {"callers_of_servers": callers} if callers else {}
    for what in ("first_audio", "acknowledgement", "late"):
        times_of = {way: getattr(times, what) for way, times in ways.items()}
        found[f"{what}_ms"] = {way: percentiles(values, 50, 99) for way, values in times_of.items() if values}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("front", choices=FRONTS)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--seconds", type=float, default=9.0, help="in which all callers speak (default %(default)s)")
    parser.add_argument("--spread-s", type=float, default=1.0, help="in which they begin, one after another (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    results = [measure(sessions, options) for sessions in options.sessions]
    columns = [(what, way) for what in ("first_audio_ms", "acknowledgement_ms") for way in ("direct", "through")]
    rows: list[list[object]] = [["sessions", "cores", *(f"{what} {way}, p50 / p99" for what, way in columns)]]
    for result in results:
        cells = [result[what].get(way) for what, way in columns]
        rows.append([result["sessions"], result["cores"], *(f"{cell['p50']:.2f} / {cell['p99']:.2f}" if cell else "" for cell in cells)])
    table(rows)
    config = {"front": options.front, "pieces_per_second": PIECES_PER_SECOND, "seconds": options.seconds, "spread_s": options.spread_s}
    config |= {"rounds": options.rounds, "load_average": round(os.getloadavg()[0], 1)}
    report("fronts", config, {"load": results}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

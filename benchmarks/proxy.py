"""What Envoy before the gates costs: callers in real time against servers that compute nothing, through Envoy and directly to a gate.

    python benchmarks/proxy.py [--sessions 1 32 128] [--seconds 10] [--servers 2] [--out FILE]
    python benchmarks/proxy.py --pairs 100 --through 127.0.0.1:8001 --direct 127.0.0.1:8101 [--out FILE]     of scripts/serve_gpus.py

The callers and the servers are those of benchmarks/gateway.py. A round goes through Envoy and then directly, so that both ways see the same
machine. Prints, for each number of callers, the time to the first audio and to the acknowledgement of a piece (p50 and p99), the cores that
Envoy keeps busy, and how many callers each server had. The last line is one JSON object. Everything shares the machine: with fewer than six
idle cores only the CPU share means something.

The second form calls servers that run: sessions of one caller, alternately through Envoy and directly to one gate, with a recording that
the server knows. It prints both times to the first audio and the median of their differences with its 95 % interval (bootstrap).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ROOT, percentiles, report, table
from benchmarks._server import MANY_CALLERS
from benchmarks.gateway import PIECES_PER_SECOND, Times, free_port, load, process, wait_until_ready
from bistream.client.audio import read_reference
from bistream.client.client import BistreamClient
from bistream.keeper.envoy_config import ProxySettings, ServerAddress, envoy_config
from bistream.keeper.gate_plan import LOOPBACK
from scripts.serve_gpus import find_envoy

SHORT_TEXT = "Hello to you all."
CALLERS_OF_GATE = "bistream_gate_sessions_total "


@dataclass
class Rig:
    servers: list[ServerAddress]
    proxy_port: int
    proxy_pid: int

    def callers(self) -> list[int]:
        """Sessions of each gate since its start."""
        return [_sessions(server.http_port) for server in self.servers]


def _sessions(http_port: int) -> int:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{http_port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return int(float(next((line for line in lines if line.startswith(CALLERS_OF_GATE)), "0").split()[-1]))


@contextmanager
def rig(servers: int, template: str | None = None) -> Iterator[Rig]:
    """Servers, gates and Envoy. template: of Envoy's configuration, in place of ours."""
    with ExitStack() as stack:
        addresses = [_open_server(stack) for _ in range(servers)]
        settings = ProxySettings(LOOPBACK, free_port(), LOOPBACK, free_port(), free_port())
        config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "envoy.yaml"
        config.write_text(envoy_config(settings, addresses, template), encoding="utf-8")
        words = ("-c", str(config), "--concurrency", "2", "--disable-hot-restart", "--log-level", "error")
        code = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
        proxy = stack.enter_context(process("-c", code, str(find_envoy(None)), *words))
        wait_until_ready(settings.grpc_port)
        yield Rig(addresses, settings.grpc_port, proxy.pid)


def _open_server(stack: ExitStack) -> ServerAddress:
    inner, grpc_port, http_port = free_port(), free_port(), free_port()
    stack.enter_context(process("benchmarks/_gateway_stub.py", str(inner)))
    ports = ("--grpc-port", str(grpc_port), "--http-port", str(http_port))
    stack.enter_context(process("-m", "gateway", "--upstream", f"{LOOPBACK}:{inner}", *ports, *MANY_CALLERS))
    wait_until_ready(inner)
    wait_until_ready(grpc_port)
    return ServerAddress(LOOPBACK, grpc_port, http_port, health_port=http_port)


def measure(sessions: int, seconds: float, rounds: int, servers: int) -> dict[str, Any]:
    direct, proxied, cores = Times(), Times(), []
    callers = [0] * servers
    with rig(servers) as made:
        for _ in range(rounds):
            for port, times in ((made.proxy_port, proxied), (made.servers[0].grpc_port, direct)):
                before = made.callers()
                new, busy = uvloop.run(load(port, sessions, seconds, made.proxy_pid))
                times.first_audio += new.first_audio
                times.acknowledgement += new.acknowledgement
                if port == made.proxy_port:
                    cores.append(busy)
                    callers = [now - then + sum_ for now, then, sum_ in zip(made.callers(), before, callers, strict=True)]
    found: dict[str, Any] = {"sessions": sessions, "cores": round(sum(cores) / len(cores), 3), "callers_of_servers": callers}
    for name, values in (("first_audio_ms", "first_audio"), ("acknowledgement_ms", "acknowledgement")):
        found[name] = {way: percentiles(getattr(times, values), 50, 99) for way, times in (("direct", direct), ("envoy", proxied))}
    return found


def first_audio_ms(client: BistreamClient) -> float:
    """Of one session, from its start to its first chunk; the rest is cancelled."""
    reference_wav = read_reference(ROOT / "assets" / "reference.wav")
    reference_text = (ROOT / "assets" / "reference.txt").read_text(encoding="utf-8").strip()
    began = time.perf_counter()
    with client.start(reference_wav=reference_wav, reference_text=reference_text, text=SHORT_TEXT, is_end=True, seed=1) as session:
        next(iter(session))
        return 1000 * (time.perf_counter() - began)


def compare(through: str, direct: str, pairs: int) -> dict[str, Any]:
    """Which way comes first changes from pair to pair."""
    clients = {"envoy": BistreamClient(through), "direct": BistreamClient(direct)}
    times: dict[str, list[float]] = {"envoy": [], "direct": []}
    for client in clients.values():
        for _ in range(2):
            first_audio_ms(client)  # the recording becomes known, to two servers behind Envoy
    for pair in range(pairs):
        for way in ("envoy", "direct") if pair % 2 else ("direct", "envoy"):
            times[way].append(first_audio_ms(clients[way]))
    differences = np.subtract(times["envoy"], times["direct"])
    medians = np.median(np.random.default_rng(0).choice(differences, (2000, pairs)), axis=1)
    low, high = (round(float(value), 3) for value in np.percentile(medians, (2.5, 97.5)))
    return {
        "first_audio_ms": {way: percentiles(values, 50, 99) for way, values in times.items()},
        "added_ms": {"median": round(float(np.median(differences)), 3), "interval": [low, high]},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--servers", type=int, default=2, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=10.0, help="of every caller (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--pairs", type=int, help="the second form: how many pairs of sessions")
    parser.add_argument("--through", default="127.0.0.1:8001", help="Envoy (default %(default)s)")
    parser.add_argument("--direct", default="127.0.0.1:8101", help="the gate of a server (default %(default)s)")
    options = parser.parse_args()
    if options.pairs is not None:
        found = compare(options.through, options.direct, options.pairs)
        report("proxy-pairs", torch.device("cpu"), {"pairs": options.pairs, "text": SHORT_TEXT}, found, options.out)
        return 0
    results = [measure(sessions, options.seconds, options.rounds, options.servers) for sessions in options.sessions]
    rows: list[list[object]] = [["sessions", "cores", "first audio p50/p99 ms", "Envoy", "acknowledgement p50/p99 ms", "Envoy", "servers"]]
    for result in results:
        cells = [result[what][how] for what in ("first_audio_ms", "acknowledgement_ms") for how in ("direct", "envoy")]
        times = [f"{cell['p50']:.2f} / {cell['p99']:.2f}" for cell in cells]
        rows.append([result["sessions"], result["cores"], *times, " + ".join(map(str, result["callers_of_servers"]))])
    table(rows)
    config = {"pieces_per_second": PIECES_PER_SECOND, "seconds": options.seconds, "rounds": options.rounds, "servers": options.servers}
    report("proxy", torch.device("cpu"), config, {"load": results}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

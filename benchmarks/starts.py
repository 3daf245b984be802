"""How long starts wait for the orchestrator when many callers start sessions all the time, and what a session costs it. No server, no GPU.

    python benchmarks/starts.py [--callers 8 64 256] [--sessions 1024] [--out FILE]

The models answer after fixed times and compute nothing. As in Triton, one thread hands requests to the orchestrator, one after the
other; each caller starts its next session when the last one has ended, with a recording of 5 s that is known. Printed: milliseconds
from a start until that thread has handed it over, how long the handing over takes, the first audio beyond the times of the models, CPU
milliseconds of a session, threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import percentiles, report, table
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.orchestration.orchestrator import Orchestrator
from bistream.orchestration.ports import BistreamRequest, Ports
from bistream.rates import SAMPLES_PER_TOKEN
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.service import Token2WavHop
from bistream.types import AudioChunk, FinishReason, FloatArray, IntArray, SpeakerFeatures, SpeechTokens, VoicePrompt

TAKE_S, HOP_S = 0.015, 0.03
MESSAGES = (18, 25, 37)  # speech tokens: 3.2 s of audio in three hops
RECORDING = (np.arange(80_000, dtype=np.float32) % 100) / 200


class Voice:
    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        return np.arange(len(reference_wav) // 640, dtype=np.int32)

    def speaker_features(self, reference_wav: FloatArray) -> SpeakerFeatures:
        return SpeakerFeatures(np.ones(192, np.float32), np.zeros((len(reference_wav) // 320, 80), np.float32))


class LanguageModel:
    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    async def start(self, start: LanguageModelStart) -> None:
        pass

    async def take(self, session_id: str, wanted_tokens: int) -> SpeechTokens:
        await asyncio.sleep(TAKE_S)
        number = self._taken[session_id]
        self._taken[session_id] += 1
        is_last = number + 1 == len(MESSAGES)
        return SpeechTokens(tuple(range(MESSAGES[number])), number, FinishReason.EOS if is_last else None)

    async def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        pass

    async def cancel(self, session_id: str) -> None:
        pass


class Token2Wav:
    async def hop(self, hop: Token2WavHop) -> FloatArray:
        await asyncio.sleep(HOP_S)
        return np.zeros(len(hop.token_ids) * SAMPLES_PER_TOKEN, np.float32)

    async def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float, session_id: str) -> FloatArray:
        raise NotImplementedError

    async def cancel(self, session_id: str) -> None:
        pass

    def others(self) -> int:
        return 0

    def report(self) -> LoadReport | None:
        return None


class Crowd:
    """Callers without a pause, and the thread that takes their requests."""

    def __init__(self, callers: int, sessions: int) -> None:
        self._left = sessions
        self._ended = threading.Semaphore(0)
        self.inbox: SimpleQueue[float] = SimpleQueue()  # when each request was sent
        self.first_audio_s: list[float] = []
        self.waited_s: list[float] = []
        self.handed_s: list[float] = []
        config = RuntimeConfig(max_sessions=callers + 8, drain_timeout_s=0.0, admission_load=0.0)
        self._orchestrator = Orchestrator(config, Ports(Voice(), LanguageModel(), Token2Wav()))
        for _ in range(callers):
            self.inbox.put(time.monotonic())

    def serve(self) -> int:
        """Returns the most threads at a time."""
        threads = 0
        for _ in range(self._left):
            sent_at = self.inbox.get()
            request = BistreamRequest(target_text=b"Hello you.", reference_wav=RECORDING.copy(), reference_text="Hello.")
            began_at = time.monotonic()
            self._orchestrator.handle(request, Sender(self, sent_at))
            self.handed_s.append(time.monotonic() - began_at)
            self.waited_s.append(time.monotonic() - sent_at)
            threads = max(threads, threading.active_count())
        for _ in range(self._left):
            self._ended.acquire()
        self._orchestrator.close()
        return threads

    def ended(self) -> None:
        self._ended.release()
        self.inbox.put(time.monotonic())


class Sender:
    def __init__(self, crowd: Crowd, sent_at: float) -> None:
        self._crowd, self._sent_at, self._has_audio = crowd, sent_at, False

    async def send(self, chunk: AudioChunk) -> None:
        if not self._has_audio:
            self._has_audio = True
            self._crowd.first_audio_s.append(time.monotonic() - self._sent_at - TAKE_S - HOP_S)

    def report(self, heard: AudioChunk) -> None:
        raise AssertionError("nothing is cancelled")

    def finish(self, error: BistreamError | None) -> None:
        assert error is None, error
        self._crowd.ended()

    def is_cancelled(self) -> bool:
        return False


def measure(callers: int, sessions: int) -> dict[str, Any]:
    crowd, cpu_s, began = Crowd(callers, sessions), time.process_time(), time.monotonic()
    threads = crowd.serve()
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - began
    times = {"waited": crowd.waited_s, "handed": crowd.handed_s, "first_audio": crowd.first_audio_s}
    return {
        "callers": callers,
        **{f"{name}_ms": percentiles([1000 * value for value in values], 50, 90, 99) for name, values in times.items()},
        "starts_per_s": round(sessions / wall_s, 1),
        "cpu_ms_per_session": round(1000 * cpu_s / sessions, 2),
        "threads": threads,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--sessions", type=int, default=1024, help="in all, for each number of callers (default %(default)s)")
    parser.add_argument("--out", help="also write the result to this file")
    options = parser.parse_args()
    runs = [measure(callers, options.sessions) for callers in options.callers]
    names = ("waited_ms", "handed_ms", "first_audio_ms")
    header = ("callers", *(f"{name} {rank}" for name in names for rank in ("p50", "p99")), "starts/s", "CPU ms per session", "threads")
    rows = [
        (run["callers"], *(run[name][rank] for name in names for rank in ("p50", "p99")), run["starts_per_s"], run["cpu_ms_per_session"],
         run["threads"])
        for run in runs
    ]  # fmt: skip
    table([header, *rows])
    report("starts", torch.device("cpu"), {"sessions": options.sessions}, {"runs": json.loads(json.dumps(runs))}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

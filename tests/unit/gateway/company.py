"""Callers beside an attack: sessions that live through it, and new ones meanwhile. What they heard is asserted, pace is not."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bistream.client.client import BistreamClient
from bistream.errors import BistreamError
from tests.unit.gateway.requests import BISTREAM
from tests.unit.gateway.rig import TIMEOUT_S

LIVE_SESSIONS, NEWCOMERS = 4, 2
PAUSE_S = 0.02  # of a caller between its pieces, and between its calls


class Company:
    """A context. At its end every session must have heard all of its audio, and every newcomer must have been served."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._begun = threading.Semaphore(0)  # once for each live session
        self.served: Counter[str] = Counter()
        self.failures: list[str] = []
        works = [self._live] * LIVE_SESSIONS + [self._start_sessions] * (NEWCOMERS // 2) + [self._ask] * (NEWCOMERS // 2)
        self._threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        for _ in range(LIVE_SESSIONS):
            assert self._begun.acquire(timeout=TIMEOUT_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        if error is None:
            assert not any(thread.is_alive() for thread in self._threads) and not self.failures, self.failures[:5]

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as error:  # the test must hear of everything
            self.failures.append(f"{work.__name__}: {error!r}")
            self._begun.release()

    def _live(self) -> None:
        """One session for the whole time: a piece, its audio, the next piece."""
        pieces = 1
        with BistreamClient(self._address).start(speaker_id="anna", text="x") as session:
            chunks = iter(session)
            numbers = [next(chunks).sequence_number]
            self._begun.release()
            is_last = False
            while not is_last:
                is_last = self._stop.wait(PAUSE_S)
                session.push_text("x")
                pieces += 1
                numbers.append(next(chunks).sequence_number)
            session.end_text("x")
            numbers += [chunk.sequence_number for chunk in chunks]
        assert numbers == list(range(pieces + 1)), numbers

    def _start_sessions(self) -> None:
        """Short sessions, each on a connection of its own; one at least."""
        while not (self._stop.wait(PAUSE_S) and self.served["session"]):
            try:
                with BistreamClient(self._address).start(speaker_id="anna", text="x", is_end=True) as session:
                    assert len(list(session)) == 1
                self.served["session"] += 1
            except (BistreamError, ConnectionError, TimeoutError) as error:
                self.failures.append(f"a new session: {error!r}")
                return

    def _ask(self) -> None:
        """Unary calls, likewise."""
        while not (self._stop.wait(PAUSE_S) and self.served["question"]):
            with grpc.insecure_channel(self._address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                try:
                    stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=BISTREAM), timeout=TIMEOUT_S)
                    self.served["question"] += 1
                except grpc.RpcError as error:
                    self.failures.append(f"a question: {error.code()} {error.details()}")
                    return


class Proc:
    """A process as Linux counts it."""

    def __init__(self, process_id: int) -> None:
        self._folder = Path(f"/proc/{process_id}")

    @property
    def descriptors(self) -> int:
        return len(list((self._folder / "fd").iterdir()))

    @property
    def memory_mib(self) -> float:
        (line,) = [line for line in (self._folder / "status").read_text().splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024

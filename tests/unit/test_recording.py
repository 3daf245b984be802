"""The order in which calls are run and recorded, with torch's streams and graphs replaced: no GPU here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from bistream.gpu.recording import GraphRecorder

Log = list[tuple[str, ...]]


class FakeStream:
    def __init__(self, log: Log, name: str) -> None:
        self.log = log
        self.name = name

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append((self.name, "waits for", other.name))

    def synchronize(self) -> None:
        self.log.append((self.name, "synchronize"))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Events in order; work of a call is logged with the current stream and whether it is recorded."""
    events: Log = []
    current = [FakeStream(events, "main")]
    pools = iter(("pool 1", "pool 2"))

    @contextlib.contextmanager
    def stream(chosen: FakeStream) -> Iterator[None]:
        current.append(chosen)
        yield
        current.pop()

    class Graph:
        def capture_begin(self, pool: str, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            events.append(("begin", pool, current[-1].name))

        def capture_end(self) -> None:
            events.append(("end",))

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(events, "side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append(("give back",)))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch, "launched", lambda name: events.append((name, current[-1].name)), raising=False)
    return events


def launch(name: str) -> None:
    torch.launched(name)  # type: ignore[attr-defined]


DEVICE = torch.device("cuda")


def test_a_call_runs_to_completion_before_it_is_recorded(log: Log) -> None:
    GraphRecorder(DEVICE).record(lambda: launch("call"))
    assert log == [
        ("side", "waits for", "main"),
        ("call", "side"),
        ("side", "synchronize"),
        ("main", "waits for", "side"),
        ("give back",),
        ("begin", "pool 1", "side"),
        ("call", "side"),
        ("end",),
    ]


def test_memory_is_given_back_before_the_first_graph_alone(log: Log) -> None:
    recorder = GraphRecorder(DEVICE)
    for name in ("large", "middle", "small"):
        recorder.record(lambda name=name: launch(name))  # type: ignore[misc]
    assert log.count(("give back",)) == 1 and log.index(("give back",)) < log.index(("begin", "pool 1", "side"))


def test_a_call_that_fails_ends_its_recording(log: Log) -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        GraphRecorder(DEVICE).capture(fail)
    assert log[-1] == ("end",)


def test_all_graphs_of_a_recorder_share_one_pool_and_one_stream(log: Log) -> None:
    recorder = GraphRecorder(DEVICE)
    graphs = [recorder.record(lambda: launch("small")), recorder.record(lambda: launch("large"))]
    assert graphs[0] is not graphs[1]
    assert [event for event in log if event[0] == "begin"] == [("begin", "pool 1", "side")] * 2


def test_stream_and_pool_can_be_given(log: Log) -> None:
    own = FakeStream(log, "own")
    first = GraphRecorder(DEVICE, own)  # type: ignore[arg-type]
    GraphRecorder(DEVICE, own, first.pool).record(lambda: launch("call"))  # type: ignore[arg-type]
    assert ("begin", "pool 1", "own") in log
    assert [event for event in log if event[0] == "call"] == [("call", "own")] * 2


def test_warming_up_records_nothing(log: Log) -> None:
    GraphRecorder(DEVICE).warm_up(lambda: launch("call"))
    assert [event[0] for event in log].count("call") == 1 and not any(event[0] == "begin" for event in log)

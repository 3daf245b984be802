"""benchmarks/dataset.py against a real gRPC server with scripted answers: runs, and the sentence of each failure."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import dataset
from benchmarks._dataset_callers import shares_of
from tests.unit.benchmarks.sets import write_jsonl
from tests.unit.client.fake_server import FakeServer, Received, Stream

TEXTS = ["One.", "Two.", "Three."]


class Speaker:
    """Two chunks of 100 ms for each text. ``stop_at`` ends the server at its text."""

    def __init__(self, stop_at: str = "") -> None:
        self.stop_at = stop_at
        self.server: FakeServer | None = None

    def __call__(self, request: Received, stream: Stream) -> None:
        if request.inputs["target_text"].decode() == self.stop_at:
            assert self.server is not None
            threading.Thread(target=self.server.stop).start()
            return
        for number in range(2):
            stream.audio(request.id, np.full(2400, 0.5), number, 0)
        stream.final(request.id)


class ModelServer(FakeServer):
    """Answers what the benchmark asks about ``cosyvoice2``, which streams."""

    def ModelConfig(self, request: Any, context: Any) -> Any:
        answer = super().ModelConfig(request, context)
        answer.config.model_transaction_policy.decoupled = True
        return answer


def serve(speaker: Speaker) -> ModelServer:
    server = speaker.server = ModelServer(speaker)
    return server


def arguments(server: FakeServer, source: Path, out: Path, *more: str) -> list[str]:
    return ["--server", server.address, "--dataset", str(source), "--out", str(out), "--warm-up", "0", "--processes", "1", *more]


def texts(server: FakeServer) -> list[str]:
    return [request.inputs["target_text"].decode() for request in server.received]


def test_a_run_for_each_number_of_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With WAV files, upstream's files and warm-up."""
    source, out = write_jsonl(tmp_path, TEXTS), tmp_path / "out"
    with serve(Speaker()) as server:
        assert dataset.main([*arguments(server, source, out, "--num-tasks", "1", "2", "--wavs", "--upstream-files"), "--warm-up", "1"]) == 0
    assert sorted(texts(server)) == sorted(2 * (["One."] + TEXTS))
    assert server.received[0].inputs["reference_wav_len"].tolist() == [[16000]]
    runs = json.loads((out / "result.json").read_text())["metrics"]["runs"]
    assert [(run["num_tasks"], run["sessions"], run["failed"]) for run in runs] == [(1, 3, 0), (2, 3, 0)]
    assert [run["audio_s"] for run in runs] == [pytest.approx(0.6)] * 2
    for tasks in (1, 2):
        folder = out / f"tasks-{tasks}"
        names = {f"{name}.wav" for name in "abc"} | {"rtf-set.txt"}
        assert {path.name for path in folder.iterdir()} == names
        assert soundfile.info(folder / "a.wav").frames == 4800
        assert "total_duration: 0.600 seconds" in (folder / "rtf-set.txt").read_text()
    assert "RTF" in capsys.readouterr().out


def test_audio_is_counted_and_written_at_the_rate_that_the_server_tells(tmp_path: Path) -> None:
    source, out = write_jsonl(tmp_path, TEXTS), tmp_path / "out"
    with serve(Speaker()) as server:
        server.card = {"sample_rate": "16000"}
        assert dataset.main(arguments(server, source, out, "--wavs")) == 0
    (run,) = json.loads((out / "result.json").read_text())["metrics"]["runs"]
    assert run["audio_s"] == pytest.approx(len(TEXTS) * 4800 / 16000)
    assert soundfile.info(out / "tasks-1" / "a.wav").samplerate == 16000


def test_a_lost_server_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_jsonl(tmp_path, TEXTS), tmp_path / "out"
    with serve(Speaker(stop_at="Two.")) as server:
        assert dataset.main(arguments(server, source, out)) == 3
    assert "The server was lost after 1 of 3 rows" in capsys.readouterr().err


@given(rows=st.lists(st.integers(), min_size=1, max_size=60), tasks=st.integers(1, 70))
def test_every_row_is_in_one_share(rows: list[int], tasks: int) -> None:
    shares = shares_of(rows, tasks)
    assert [row for share in shares for row in share] == rows
    assert len(shares) == min(tasks, len(rows)) and max(map(len, shares)) - min(map(len, shares)) <= 1

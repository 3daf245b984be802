"""benchmarks/dataset.py against a real gRPC server with scripted answers: runs, and the sentence of each failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from benchmarks import _preflight, dataset, first_audio
from benchmarks._dataset_callers import shares_of
from tests.unit.benchmarks.sets import write_jsonl, write_recording
from tests.unit.client.fake_server import FakeServer, Received, Stream

TEXTS = ["One.", "Two.", "Three."]


class Speaker:
    """Two chunks of 100 ms for each text, and an error for the texts of ``errors``. ``stop_at`` ends the server at its text."""

    def __init__(self, errors: dict[str, str] | None = None, stop_at: str = "") -> None:
        self.errors = errors or {}
        self.stop_at = stop_at
        self.server: FakeServer | None = None

    def __call__(self, request: Received, stream: Stream) -> None:
        text = request.inputs["target_text"].decode()
        if text == self.stop_at:
            assert self.server is not None
            threading.Thread(target=self.server.stop).start()
        elif text in self.errors:
            stream.error(request.id, self.errors[text])
        else:
            for number in range(2):
                stream.audio(request.id, np.full(2400, 0.5), number, 0)
            stream.final(request.id)


class ModelServer(FakeServer):
    """Answers what the benchmark asks about ``cosyvoice2``. decoupled: whether it streams."""

    decoupled = True

    def ModelConfig(self, request: Any, context: Any) -> Any:
        config = model_config_pb2.ModelConfig(name=request.name)
        config.model_transaction_policy.decoupled = self.decoupled
        return service_pb2.ModelConfigResponse(config=config)


@pytest.fixture
def servers() -> Iterator[list[FakeServer]]:
    """Those that a test starts."""
    started: list[FakeServer] = []
    yield started
    for server in started:
        server.stop()


def serve(servers: list[FakeServer], speaker: Speaker) -> ModelServer:
    server = ModelServer(speaker)
    speaker.server = server
    servers.append(server)
    return server


def arguments(server: FakeServer, source: Path, out: Path, *more: str) -> list[str]:
    return ["--server", server.address, "--dataset", str(source), "--out", str(out), "--warm-up", "0", "--processes", "1", *more]


def texts(server: FakeServer) -> list[str]:
    return [request.inputs["target_text"].decode() for request in server.received]


def test_a_run_for_each_number_of_tasks(servers: list[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With WAV files, upstream's files and warm-up."""
    server = serve(servers, Speaker())
    source, out = write_jsonl(tmp_path, TEXTS), tmp_path / "out"
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


def test_a_lost_server_ends_the_run(servers: list[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_jsonl(tmp_path, TEXTS), tmp_path / "out"
    assert dataset.main(arguments(serve(servers, Speaker(stop_at="Two.")), source, out)) == 3
    assert "The server was lost after 1 of 3 rows" in capsys.readouterr().err


def test_what_failed_is_said_once(servers: list[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_jsonl(tmp_path, TEXTS), tmp_path / "out"
    server = serve(servers, Speaker(errors={"One.": "BUSY: Try later.", "Two.": "BUSY: Try later."}))
    assert dataset.main(arguments(server, source, out)) == 1
    assert capsys.readouterr().err == "error: 2 of 3 failed: BUSY: Try later.\n"


def test_a_recording_that_cannot_be_read_fails_its_row_alone(
    servers: list[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path, TEXTS)
    (tmp_path / "broken.wav").write_text("no audio")
    source.write_text(source.read_text().replace("voice.wav", "broken.wav", 1))
    assert dataset.main(arguments(serve(servers, Speaker()), source, tmp_path / "out")) == 1
    assert "1 of 3 failed: " in (said := capsys.readouterr().err) and "broken.wav could not be read as audio" in said


def test_failures_before_the_first_row(servers: list[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_jsonl(tmp_path, TEXTS), tmp_path / "out"
    server = serve(servers, Speaker())
    cases: list[tuple[list[str], int, str]] = [
        (arguments(server, tmp_path / "gone.jsonl", out), 2, "does not exist"),
        (arguments(server, source, out, "--mode", "offline"), 1, "WRONG_CALL: cosyvoice2 here streams; serve it with"),
    ]
    for given_arguments, code, words in cases:
        assert dataset.main(given_arguments) == code
        said = capsys.readouterr()
        assert words in said.err and len(said.err.splitlines()) == 1 and not said.out
    server.decoupled = False
    assert dataset.main(arguments(server, source, out)) == 1
    assert "answers in one piece" in capsys.readouterr().err
    assert not out.exists() and not server.received


def test_no_server_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the load test, too."""
    monkeypatch.setattr(_preflight, "TIMEOUT_S", 2.0)
    write_recording(tmp_path / "voice.wav")
    voice = ["--reference-audio", str(tmp_path / "voice.wav"), "--reference-text", "A tone."]
    source = write_jsonl(tmp_path, TEXTS)
    mains: list[Callable[[], int]] = [
        lambda: first_audio.main(["--server", "127.0.0.1:1", "--closed", "1", "--text", "Hello.", *voice]),
        lambda: dataset.main(["--server", "127.0.0.1:1", "--dataset", str(source), "--out", str(tmp_path / "out")]),
    ]
    for main in mains:
        assert main() == 3
        said = capsys.readouterr()
        assert said.err.startswith("error: No server answers at 127.0.0.1:1") and len(said.err.splitlines()) == 1 and not said.out


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.integers(), min_size=1, max_size=60), tasks=st.integers(1, 70))
def test_every_row_is_in_one_share(rows: list[int], tasks: int) -> None:
    shares = shares_of(rows, tasks)
    assert [row for share in shares for row in share] == rows
    assert len(shares) == min(tasks, len(rows)) and max(map(len, shares)) - min(map(len, shares)) <= 1

"""``bistream serve`` with the gate in front, on an address that the user has opened: what clients reach, what they do not, what the loss of
either process costs, and the end in use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bistream.keeper.health import LIVE, READY
from bistream.metrics.catalogue import HOP_STAGES, OUTER_STAGES, TOKENS_STAGES
from tests.ports import port
from tests.triton.conftest import PATIENCE_S, ROOT, START_TIMEOUT_S, make_repository, wait_for
from tests.triton.keeper import SUB_COMMAND, Keeper
from tests.triton.requests import Answer, Stream, ask
from tests.triton.scraping import Scrape
from tests.triton.sockets import family, is_loopback, listening
from tests.triton.test_sessions import MODEL, check_audio
from tests.triton.upstream_clients import ask_statistics, stream_each

Voice = dict[str, Any]
PIECES = ["The first words are spoken, ", "the next come later, ", "and these are the last."]
SESSIONS = 8
LONG = "300"  # seconds; no test waits for it
MANY = {"max_sessions": "16", "cosyvoice2_bistream.max_sessions": str(SESSIONS)}


@pytest.fixture(scope="module")
def metrics_url() -> str:
    return f"http://127.0.0.1:{port()}/metrics"


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, brief_model_dir: Path, metrics_url: str) -> Iterator[Keeper]:
    """One service for the tests below, each of which leaves it working but the last. No probe speaks beside them."""
    repository = make_repository(tmp_path_factory.mktemp("served"), brief_model_dir, None, **MANY)
    health_port = metrics_url.partition("/metrics")[0].rpartition(":")[2]
    options = ("--grpc-address", "0.0.0.0", "--health-port", health_port, "--probe-interval-s", "0", "--drain-timeout-s", LONG)
    with Keeper(repository, *options, program=SUB_COMMAND) as made:
        yield made


def read(metrics_url: str) -> Scrape:
    with urllib.request.urlopen(metrics_url, timeout=PATIENCE_S) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return Scrape(response.read().decode())


def start(stream: Stream, voice: Voice, is_end: bool = False) -> tuple[str, Answer]:
    """A session that speaks, and waits for more text unless ``is_end``."""
    session_id = uuid.uuid4().hex
    answer = stream.send(MODEL, session_id=session_id, target_text=PIECES[0], is_end=is_end, **voice)
    stream.receive_audio(answer)
    return session_id, answer


def send_rest(stream: Stream, session_id: str) -> None:
    for piece in PIECES[1:]:
        is_end = piece is PIECES[-1]
        accepted = stream.receive(stream.send(MODEL, session_id=session_id, target_text=piece, is_start=False, is_end=is_end))
        assert accepted.error is None


def finish(stream: Stream, session_id: str, answer: Answer) -> None:
    send_rest(stream, session_id)
    check_audio(stream.receive(answer), len("".join(PIECES)))


def status(url: str) -> int:
    """0 while nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_clients_reach_the_front_models_and_no_inner_model(keeper: Keeper, voice: Voice) -> None:
    with Stream(keeper.grpc_url) as stream:
        finish(stream, *start(stream, voice))
    for model in ("llm_bistream", "token2wav", "audio_tokenizer", "speaker_embedding"):
        assert ask(keeper.grpc_url, model, target_text="x").code == "INVALID_INPUT"


def test_nothing_listens_outside_loopback_but_the_opened_address(keeper: Keeper, voice: Voice) -> None:
    with Stream(keeper.grpc_url) as stream:
        session = start(stream, voice)
        sockets = listening(family(keeper.pid))
        finish(stream, *session)
    assert len(sockets) == 6, sockets  # two doors of the gate; Triton's gRPC, HTTP and metrics; the keeper's health and metrics
    (open_to_all,) = {one for one in sockets if not is_loopback(one[0])}
    port_in_the_open = int(keeper.grpc_url.rpartition(":")[2])
    assert open_to_all in (("0.0.0.0", port_in_the_open), ("::", port_in_the_open)), "gRPC takes both families where it can"


def test_a_gate_that_dies_is_replaced_alone(keeper: Keeper, voice: Voice) -> None:
    triton, gate = keeper.triton, keeper.gate
    with Stream(keeper.grpc_url) as stream:
        start(stream, voice)
        os.kill(gate, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{gate}").exists(), "its end")
        wait_for(lambda: status(f"http://{keeper.http_url}{READY}") == 200, "the next gate")
    with Stream(keeper.grpc_url) as stream:
        finish(stream, *start(stream, voice))
    assert keeper.triton == triton and keeper.gate != gate


def test_the_metrics_of_the_keeper_serve_the_benchmark(keeper: Keeper, metrics_url: str) -> None:
    def spoken() -> float:
        return read(metrics_url)("bistream_audio_ttfp_s_count", text="pieces")

    before = spoken()
    check_the_benchmark(keeper.grpc_url, metrics_url)
    wait_for(lambda: spoken() == before + 1 + 4, "the sessions in the metrics")


def test_a_server_that_dies_gives_each_session_one_error_and_comes_back(keeper: Keeper, voice: Voice, metrics_url: str) -> None:
    with Stream(keeper.grpc_url) as stream:
        finish(stream, *start(stream, voice))
    wait_for(lambda: read(metrics_url)("bistream_audio_ttfp_s_count", text="pieces") > 0, "the session in the metrics")
    restarts = read(metrics_url)("bistream_server_restarts_total")
    triton, gate = keeper.triton, keeper.gate
    streams = [Stream(keeper.grpc_url) for _ in range(3)]
    sessions = [start(stream, voice) for stream in streams]
    os.kill(triton, signal.SIGKILL)
    for stream, (_, answer) in zip(streams, sessions, strict=True):
        stream.receive(answer)
        assert (answer.code, answer.errors, answer.finals, answer.last_is_empty) == ("ENGINE_ERROR", 1, 1, True)
    wait_for(lambda: keeper.triton != triton and keeper.is_announced(), "the restart", START_TIMEOUT_S)
    assert (keeper.gate, keeper.addresses()["triton"]) == (gate, keeper.triton_url)
    now = read(metrics_url)
    assert (now("bistream_server_restarts_total"), now("bistream_server_ready")) == (restarts + 1, 1)
    assert now("bistream_audio_ttfp_s_count", text="pieces") == 0  # a new server counts from zero
    for stream in streams:  # the clients' streams have stayed open
        finish(stream, *start(stream, voice))
        stream.__exit__(None, None, None)


def test_upstreams_client_streams(keeper: Keeper, reference_wav: NDArray[np.float32]) -> None:
    before = ask_statistics(keeper.grpc_url)
    spoken = stream_each(keeper.grpc_url, reference_wav[0], "A reference.", ["Good morning.", "Good night."])
    assert all(audio.ndim == 1 and audio.size > 0 and np.isfinite(audio).all() for audio in spoken)
    assert ask_statistics(keeper.grpc_url) >= before + len(spoken)  # the keeper's probes count too


def test_running_sessions_finish_and_new_ones_are_refused(keeper: Keeper, voice: Voice, metrics_url: str) -> None:
    """Last: it ends the service."""
    health = metrics_url.removesuffix("/metrics")
    with Stream(keeper.grpc_url) as stream:
        undisturbed = stream.receive(start(stream, voice, is_end=True)[1]).waveform.size
        session_id, answer = start(stream, voice)
        keeper.signal()
        keeper.wait_said("gate: draining: 1 sessions")
        keeper.wait_said("draining: 1 sessions left")
        assert (status(health + READY), status(health + LIVE)) == (503, 200) and not keeper.is_announced()
        for model in (MODEL, "cosyvoice2"):
            refused = ask(keeper.grpc_url, model, target_text="Too late.", **voice)
            assert refused.code == "SHUTTING_DOWN" and refused.error is not None and refused.error.retryable
            assert refused.finals == 1 and refused.last_is_empty
        assert not keeper.has_ended
        send_rest(stream, session_id)
        check_audio(stream.receive(answer), len("".join(PIECES)))
        assert answer.waveform.size > undisturbed > 0
    keeper.check_end()


def check_the_benchmark(grpc_url: str, metrics_url: str) -> None:
    """Two callers in two processes, after one session that does not count."""
    command = [sys.executable, str(ROOT / "benchmarks/first_audio.py"), "--server", grpc_url, "--metrics", metrics_url]
    command += "--closed 2 --requests 2 --processes 2 --texts pieces --text-rate 50 --text".split() + ["One two three."]
    command += ["--reference-audio", str(ROOT / "assets/reference.wav"), "--reference-text", "A reference."]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S)  # three processes
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout.splitlines()[-1])["metrics"]["runs"]
    assert (run["load"], run["voice"], run["text"], run["sessions"], run["failed"]) == ("closed 2", "recording", "pieces", 4, 0)
    stages = {name: values["mean"] for name, values in run["stages_ms"].items()}
    assert sum(stages[name] for name in OUTER_STAGES) == pytest.approx(run["first_audio_server_ms"]["mean"], abs=0.1)
    inner = [name for name in stages if "." in name]
    assert len(inner) == len(TOKENS_STAGES) + len(HOP_STAGES) + 2 and all(stages[name] >= 0.0 for name in inner)

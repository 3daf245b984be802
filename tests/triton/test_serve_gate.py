"""``scripts/serve.py`` with the gate in front: what clients reach, what they do not, and what the loss of either process costs."""

from __future__ import annotations

import os
import signal
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bistream.keeper.health import READY
from tests.triton.conftest import PATIENCE_S, START_TIMEOUT_S, make_repository, wait_for
from tests.triton.keeper import Keeper
from tests.triton.requests import Answer, Stream, ask
from tests.triton.sockets import family, is_loopback, listening
from tests.triton.test_sessions import MODEL, check_audio
from tests.triton.upstream_clients import ask_over_http, ask_statistics, infer_offline, stream_each

Voice = dict[str, Any]
PIECES = ["The first words are spoken, ", "the next come later, ", "and these are the last."]
SESSIONS = 8
LONG = "300"  # seconds; no test waits for it
MANY = {"max_sessions": "16", "cosyvoice2_bistream.max_sessions": str(SESSIONS)}


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Keeper]:
    """One service for the tests below, each of which leaves it working."""
    repository = make_repository(tmp_path_factory.mktemp("served"), tiny_model_dir, None, **MANY)
    with Keeper(repository) as made:
        yield made
        made.signal()
        made.check_end()


def start(stream: Stream, voice: Voice) -> tuple[str, Answer]:
    """A session that speaks and waits for more text."""
    session_id = uuid.uuid4().hex
    answer = stream.send(MODEL, session_id=session_id, target_text=PIECES[0], is_end=False, **voice)
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


def is_ready(keeper: Keeper) -> bool:
    """The word of the gate at the public port."""
    try:
        with urllib.request.urlopen(f"http://{keeper.http_url}{READY}", timeout=PATIENCE_S) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_clients_reach_the_front_doors_and_no_inner_model(keeper: Keeper, voice: Voice) -> None:
    with Stream(keeper.grpc_url) as stream:
        finish(stream, *start(stream, voice))
    for model in ("llm_bistream", "token2wav", "audio_tokenizer", "speaker_embedding"):
        assert ask(keeper.grpc_url, model, target_text="x").code == "INVALID_INPUT"


def test_nothing_listens_outside_loopback(keeper: Keeper, voice: Voice) -> None:
    with Stream(keeper.grpc_url) as stream:
        session = start(stream, voice)
        sockets = listening(family(keeper.pid))
        finish(stream, *session)
    assert len(sockets) == 5, sockets  # two doors of the gate; Triton's gRPC, HTTP and metrics
    assert all(is_loopback(address) for address, _ in sockets), sockets


def test_a_gate_that_dies_is_replaced_alone(keeper: Keeper, voice: Voice) -> None:
    triton, gate = keeper.triton, keeper.gate
    with Stream(keeper.grpc_url) as stream:
        start(stream, voice)
        os.kill(gate, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{gate}").exists(), "its end")
        wait_for(lambda: is_ready(keeper), "the next gate")
    with Stream(keeper.grpc_url) as stream:
        finish(stream, *start(stream, voice))
    assert keeper.triton == triton and keeper.gate != gate


def test_a_server_that_dies_gives_each_session_one_error_and_comes_back(keeper: Keeper, voice: Voice) -> None:
    triton, gate = keeper.triton, keeper.gate
    streams = [Stream(keeper.grpc_url) for _ in range(3)]
    sessions = [start(stream, voice) for stream in streams]
    os.kill(triton, signal.SIGKILL)
    for stream, (_, answer) in zip(streams, sessions, strict=True):
        stream.receive(answer)
        assert (answer.code, answer.errors, answer.finals, answer.last_is_empty) == ("ENGINE_ERROR", 1, 1, True)
    wait_for(lambda: keeper.triton != triton and keeper.is_announced(), "the restart", START_TIMEOUT_S)
    assert (keeper.gate, keeper.addresses()["triton"]) == (gate, keeper.triton_url)
    for stream in streams:  # the clients' streams have stayed open
        finish(stream, *start(stream, voice))
        stream.__exit__(None, None, None)


def test_a_drain_lets_every_session_end_well(tmp_path: Path, tiny_model_dir: Path, voice: Voice) -> None:
    """On addresses that the user has opened, where nothing else is open."""
    repository = make_repository(tmp_path, tiny_model_dir, None, **MANY)
    with Keeper(repository, "--grpc-address", "0.0.0.0", "--drain-timeout-s", LONG) as keeper:
        port = int(keeper.grpc_url.rpartition(":")[2])
        assert {socket for socket in listening(family(keeper.pid)) if not is_loopback(socket[0])} == {("0.0.0.0", port)}
        streams = [Stream(keeper.grpc_url) for _ in range(SESSIONS)]
        sessions = [start(stream, voice) for stream in streams]
        keeper.signal()
        keeper.wait_said(f"gate: draining: {SESSIONS} sessions")
        refused = ask(keeper.grpc_url, MODEL, target_text="Too late.", **voice)
        assert refused.code == "SHUTTING_DOWN" and refused.finals == 1 and not keeper.has_ended
        for stream, (session_id, _) in zip(streams, sessions, strict=True):
            send_rest(stream, session_id)
        for stream, (_, answer) in zip(streams, sessions, strict=True):
            check_audio(stream.receive(answer), len("".join(PIECES)))
        keeper.check_end()
        for stream in streams:
            stream.drop()


def test_without_a_gate_clients_reach_the_server(tmp_path: Path, tiny_model_dir: Path, reference_wav: NDArray[np.float32]) -> None:
    repository = make_repository(tmp_path, tiny_model_dir, ["speaker_embedding"])
    with Keeper(repository, "--direct") as keeper:
        assert keeper.grpc_url == keeper.triton_url
        assert ask(keeper.grpc_url, "speaker_embedding", reference_wav=reference_wav).outputs
        assert len(listening(family(keeper.pid))) == 3
        keeper.signal()
        keeper.check_end()


def test_upstreams_client_streams(keeper: Keeper, reference_wav: NDArray[np.float32]) -> None:
    before = ask_statistics(keeper.grpc_url)
    spoken = stream_each(keeper.grpc_url, reference_wav[0], "A reference.", ["Good morning.", "Good night."])
    assert all(audio.ndim == 1 and audio.size > 0 and np.isfinite(audio).all() for audio in spoken)
    assert ask_statistics(keeper.grpc_url) >= before + len(spoken)  # the keeper's probes count too


def test_upstreams_clients_work_offline(tmp_path: Path, tiny_model_dir: Path, reference_wav: NDArray[np.float32]) -> None:
    """Another server than the one that streams, as upstream's: the model answers in one of two ways."""
    repository = make_repository(tmp_path, tiny_model_dir, None, **{"cosyvoice2.decoupled_mode": "False"})
    with Keeper(repository) as keeper:
        over_grpc = infer_offline(keeper.grpc_url, reference_wav[0], "A reference.", "Good morning.")
        over_http = ask_over_http(keeper.http_url, reference_wav[0], "A reference.", "Good morning.")
        assert over_grpc.ndim == over_http.ndim == 1 and over_grpc.size == over_http.size > 0
        keeper.signal()
        keeper.check_end()

"""Shutdown of a server in use: running sessions finish, new ones are refused, and the drain has a time limit."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from bistream.contract.refusals import parse_error
from bistream.keeper.health import LIVE, READY
from tests.ports import port
from tests.triton.conftest import PATIENCE_S, make_repository, wait_for
from tests.triton.keeper import SUB_COMMAND, Keeper
from tests.triton.requests import Stream, ask, to_input
from tests.triton.sockets import family, is_loopback, listening
from tests.triton.test_sessions import MODEL, check_audio

LONG = "300"  # seconds; no test waits for it
Voice = dict[str, Any]


def health(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def in_pieces(grpc_url: str, pieces: list[str], voice: Voice) -> int:
    """Number of samples of a session that gets its text piece by piece."""
    session_id = uuid.uuid4().hex
    with Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text=pieces[0], is_end=False, **voice)
        stream.receive_audio(start)
        stream.receive(stream.send(MODEL, session_id=session_id, target_text="".join(pieces[1:]), is_start=False, is_end=True))
        return stream.receive(start).waveform.size


def test_running_sessions_finish_and_new_ones_are_refused(tmp_path: Path, tiny_model_dir: Path, voice: Voice) -> None:
    """Through the gate, on an address that the user has opened, where nothing else is open."""
    pieces = ["First words, ", "the next ones, ", "the last."]  # each token is heard for up to 0.8 s
    spoken = "Slowly."
    repository = make_repository(tmp_path, tiny_model_dir, None, **{"cosyvoice2_bistream.max_unread_audio_s": "0.5"})
    health_port = port()
    options = ("--grpc-address", "0.0.0.0", "--drain-timeout-s", LONG, "--health-port", str(health_port))
    with Keeper(repository, *options, program=SUB_COMMAND) as keeper:
        port_in_the_open = int(keeper.grpc_url.rpartition(":")[2])
        (open_to_all,) = {socket for socket in listening(family(keeper.pid)) if not is_loopback(socket[0])}
        assert open_to_all in (("0.0.0.0", port_in_the_open), ("::", port_in_the_open)), "gRPC takes both families where it can"
        assert (health(health_port, READY), health(health_port, LIVE)) == (200, 200)
        session_id = uuid.uuid4().hex
        undisturbed = [
            in_pieces(keeper.grpc_url, pieces, voice),
            ask(keeper.grpc_url, "cosyvoice2", target_text=spoken, **voice).waveform.size,
        ]
        with Stream(keeper.grpc_url) as stream, Stream(keeper.grpc_url) as listener:
            start = stream.send(MODEL, session_id=session_id, target_text=pieces[0], is_end=False, **voice)
            stream.receive_audio(start)
            streaming = listener.send("cosyvoice2", target_text=spoken, **voice)
            listener.receive_audio(streaming)
            keeper.signal()
            keeper.wait_said("gate: draining: 2 sessions")
            keeper.wait_said("draining: 2 sessions left")
            assert (health(health_port, READY), health(health_port, LIVE)) == (503, 200) and not keeper.is_announced()
            for model in (MODEL, "cosyvoice2"):
                refused = ask(keeper.grpc_url, model, target_text="Too late.", **voice)
                assert refused.code == "SHUTTING_DOWN" and refused.error is not None and refused.error.retryable
                assert refused.finals == 1 and refused.last_is_empty
            for piece in pieces[1:]:
                is_end = piece is pieces[-1]
                accepted = stream.receive(stream.send(MODEL, session_id=session_id, target_text=piece, is_start=False, is_end=is_end))
                assert accepted.error is None
            check_audio(stream.receive(start), len("".join(pieces)))
            assert not keeper.has_ended
            listener.receive(streaming)
            assert streaming.error is None and streaming.finals == 1 and streaming.last_is_empty
        keeper.check_end()
        assert [start.waveform.size, streaming.waveform.size] == undisturbed


def test_an_offline_request_is_answered_before_the_end(tmp_path: Path, tiny_model_dir: Path, voice: Voice) -> None:
    instances = {"cosyvoice2.decoupled_mode": "False", "cosyvoice2.bls_instance_num": "2"}
    repository = make_repository(tmp_path, tiny_model_dir, None, **instances)
    with Keeper(repository, "--drain-timeout-s", LONG) as keeper:
        client, inside = (triton.InferenceServerClient(url) for url in (keeper.grpc_url, keeper.triton_url))
        answers: list[NDArray[np.float32]] = []
        before = analysed(inside)
        inputs = [to_input(name, value) for name, value in voice.items()] + [to_input("target_text", "Streets and trees. " * 5)]
        request = threading.Thread(target=lambda: answers.append(client.infer("cosyvoice2", inputs).as_numpy("waveform")))
        request.start()
        try:
            wait_for(lambda: analysed(inside) > before, "the request to be worked on")
            keeper.signal()
            keeper.wait_said("draining: 1 sessions left")
            for refusing in (client, inside):  # the gate, and the other instance, which refuses at once
                with pytest.raises(InferenceServerException) as refusal:
                    refusing.infer("cosyvoice2", inputs)
                assert parse_error(refusal.value.message()).code == "SHUTTING_DOWN"
            assert answers == [] and not keeper.has_ended
        finally:
            request.join()
        client.close()
        inside.close()
        assert answers[0].size > 0 and np.isfinite(answers[0]).all()
        keeper.check_end()


def analysed(client: triton.InferenceServerClient) -> int:
    """Recordings whose voice the server has. client: of the server itself."""
    return int(client.get_inference_statistics("speaker_embedding").model_stats[0].inference_count)

"""Failures: models that cannot load and model processes that die or stall, with nothing left behind afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from bistream.keeper.host import ServerError
from bistream.keeper.server_process import TritonServer
from bistream.keeper.server_start import start_server
from bistream.keeper.shared_memory import sweep_shared_memory
from tests.triton.conftest import PROBE_TIMEOUT_S, START_TIMEOUT_S, make_repository, server_settings, wait_for
from tests.triton.keeper import processes_with, serve_command, shared_memory_of
from tests.triton.requests import Stream
from tests.triton.test_sessions import MODEL, check_audio

STANDSTILL_S = 3.0  # the server suspects a model process after one


def refusal(tmp_path: Path, model_dir: Path, models: list[str]) -> str:
    repository = make_repository(tmp_path, model_dir, models)
    with pytest.raises(ServerError) as failure:
        start_server(server_settings(repository, tmp_path / "server.log"), PROBE_TIMEOUT_S)
    assert processes_with(str(repository)) == []
    return str(failure.value)


def reason_of(message: str, model: str) -> str:
    lines = [line for line in message.splitlines() if line.startswith(f"Model {model} refused to load: ")]
    assert len(lines) == 1, message
    reason = lines[0].partition(": ")[2]
    assert ".py" not in reason and reason.endswith(".")
    return reason


def test_missing_truncated_and_misfitting_files_are_named(tmp_path: Path, broken_model_dir: Path) -> None:
    (broken_model_dir / "campplus.onnx").unlink()
    weights = (broken_model_dir / "llm.pt").read_bytes()
    (broken_model_dir / "llm.pt").write_bytes(weights[: len(weights) // 2])
    path = broken_model_dir / "cosyvoice2.yaml"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("base_channels: ", "base_channels: 2")  # the digits that follow change the number
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    message = refusal(tmp_path, broken_model_dir, ["llm_bistream", "token2wav", "speaker_embedding"])
    for model, words in (("llm_bistream", ["llm.pt"]), ("token2wav", ["hift.pt", "shape"]), ("speaker_embedding", ["campplus.onnx"])):
        reason = reason_of(message, model)
        assert reason.startswith("CHECKPOINT_ERROR: ") and all(word in reason for word in words)


def test_the_exit_code_of_a_command_run_with_the_server_is_returned(tmp_path: Path, tiny_model_dir: Path) -> None:
    repository = make_repository(tmp_path, tiny_model_dir, ["speaker_embedding"])
    program = "import sys; print('asked', sys.argv[1]); sys.exit(7)"
    command = serve_command(repository, "--", sys.executable, "-c", program, "{grpc}")
    result = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    assert result.returncode == 7
    assert result.stdout.startswith("asked 127.0.0.1:")
    assert processes_with(str(repository)) == []


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path, tiny_model_dir: Path) -> None:
    repository = make_repository(tmp_path, tiny_model_dir, ["speaker_embedding"])
    ready = tmp_path / "ready.json"
    command = serve_command(repository, "--ready-file", str(ready))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as keeper:
        try:
            wait_for(lambda: ready.exists() and ready.read_text(encoding="utf-8") != "", "the start", START_TIMEOUT_S)
            triton = json.loads(ready.read_text(encoding="utf-8"))["triton"]
        finally:
            keeper.kill()
    wait_for(lambda: processes_with(str(repository)) == processes_with(triton) == [], "the end of the server, its models and the gate")
    sweep_shared_memory()
    assert shared_memory_of(keeper.pid) == []


def test_a_stalled_model_process_is_waited_for(server: TritonServer, voice: dict[str, Any]) -> None:
    """As on a host short of memory, or during migration of a virtual machine: requests of that time are answered, and a session goes on."""
    text, session_id = "The first words are spoken. ", uuid.uuid4().hex
    (process,) = processes_with(f"{server.settings.model_repository}/{MODEL}/1/model.py")
    with Stream(server.grpc_url) as stream, Stream(server.grpc_url) as other:
        start = stream.send(MODEL, session_id=session_id, target_text=text, is_end=False, **voice)
        stream.receive_audio(start)
        os.kill(process, signal.SIGSTOP)
        try:
            wrong = other.send(MODEL, target_text="", **voice)
            assert other.stays_silent(STANDSTILL_S), "the server did not wait"
        finally:
            os.kill(process, signal.SIGCONT)
        assert other.receive(wrong).code == "INVALID_INPUT"
        accepted = stream.receive(stream.send(MODEL, session_id=session_id, target_text=text, is_start=False, is_end=True))
        assert accepted.error is None
        check_audio(stream.receive(start), 2 * len(text))
    assert server.models.take_dead() == []

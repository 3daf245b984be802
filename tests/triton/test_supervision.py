"""Failures: models that cannot load, a command that fails, a keeper that is killed, with nothing left behind afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bistream.keeper.host import ServerError
from bistream.keeper.server_start import start_server
from bistream.keeper.shared_memory import sweep_shared_memory
from tests.triton.conftest import PROBE_TIMEOUT_S, START_TIMEOUT_S, make_repository, server_settings, wait_for
from tests.triton.keeper import processes_with, serve_command, shared_memory_of


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


def test_a_command_runs_with_the_server_without_a_gate_and_its_exit_code_is_returned(tmp_path: Path, tiny_model_dir: Path) -> None:
    repository = make_repository(tmp_path, tiny_model_dir, ["speaker_embedding"])
    program = "import sys, tritonclient.grpc as t; sys.exit(7 * t.InferenceServerClient(sys.argv[1]).is_model_ready('speaker_embedding'))"
    command = serve_command(repository, "--direct", "--", sys.executable, "-c", program, "{grpc}")
    result = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    assert result.returncode == 7, result.stderr
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

"""The golden utterance on the real server: stored, found again, and wrong weights never become ready."""

from __future__ import annotations

import http.client
import shutil
import subprocess
from pathlib import Path

import pytest

from bistream.keeper.golden_check import GoldenCheck
from bistream.keeper.server_process import never
from bistream.keeper.server_start import start_server
from scripts.make_checkpoint import make_checkpoint
from tests.ports import port
from tests.triton.conftest import PATIENCE_S, PROBE_TIMEOUT_S, START_TIMEOUT_S, WAIT_TIMEOUT_S, make_repository, server_settings, wait_for
from tests.triton.keeper import processes_with, serve_command

STARTS_S = 2 * START_TIMEOUT_S  # a start, the golden utterance twice, another start


def ask_ready(health_port: int) -> tuple[int, str]:
    """Status and sentence; 0 while nothing answers."""
    connection = http.client.HTTPConnection("127.0.0.1", health_port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/v2/health/ready")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def damage(path: Path) -> None:
    """Zeros in layers that every utterance uses: the file loads, and its directory still says what it should hold."""
    content = bytearray(path.read_bytes())
    place = len(content) * 7 // 10
    content[place : place + 4096] = bytes(4096)
    path.write_bytes(content)


@pytest.mark.slow
def test_wrong_weights_are_not_served(tmp_path: Path, broken_model_dir: Path) -> None:
    repository = make_repository(tmp_path, broken_model_dir)
    settings = server_settings(repository, tmp_path / "server.log")
    state = tmp_path / "state"
    check = GoldenCheck(state, PROBE_TIMEOUT_S)
    server = start_server(settings, PROBE_TIMEOUT_S, never, check)
    try:
        (stored,) = state.rglob("*.safetensors")
        before = stored.stat().st_mtime_ns
        check(server, never)  # as after a restart: the seed decides every token, and each sum has its order
        assert [path.stat().st_mtime_ns for path in state.rglob("*.safetensors")] == [before]
    finally:
        server.stop()

    damage(broken_model_dir / "flow.pt")
    health_port, ready = port(), tmp_path / "ready.json"
    command = serve_command(repository, golden=True)
    command += ["--ready-file", str(ready), "--health-port", str(health_port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as keeper:
        try:
            wait_for(lambda: "golden utterance" in ask_ready(health_port)[1] or keeper.poll() is not None, "the refusal", STARTS_S)
            status, sentence = ask_ready(health_port)
            assert status == 503 and not ready.exists()
            assert "is not as stored on 20" in sentence and "token2wav makes other audio of the same speech tokens" in sentence
            assert f"remove {stored.parent}" in sentence
            # A checkpoint that was changed on purpose is another one: at the next attempt the same keeper is ready.
            shutil.rmtree(broken_model_dir)
            make_checkpoint(broken_model_dir, "tiny", seed=1)
            wait_for(lambda: ready.exists() or keeper.poll() is not None, "the start with other weights", STARTS_S)
            assert ask_ready(health_port)[0] == 200
            assert len(list(state.rglob("*.safetensors"))) == 2 and len(list((state / "golden").iterdir())) == 2
            keeper.terminate()
            assert keeper.wait(WAIT_TIMEOUT_S) == 0
        finally:
            if keeper.poll() is None:
                keeper.kill()
    assert processes_with(str(repository)) == []

"""``deploy/entrypoint.sh`` as a container runs it, on the embedded server: variables to readiness, SIGTERM to a drain, and another one to
the end. It serves Spark-TTS offline, so upstream's offline clients of that family are tested here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from tests.ports import port
from tests.triton.callers import Caller
from tests.triton.conftest import LIMITS, PATIENCE_S, ROOT, START_TIMEOUT_S, TRITON_BACKENDS, TRITON_SERVER, wait_for
from tests.triton.keeper import processes_with, shared_memory_of
from tests.triton.sockets import parents
from tests.triton.upstream_clients import SPARK_MODEL, ask_over_http, infer_offline

Voice = dict[str, Any]
SENTENCES = "Hello there, nice to see you here again today. How are"  # the first is spoken before the second is written


def variables(folder: Path, model_dir: Path) -> dict[str, str]:
    settings = {key.replace(".", "__"): value for key, value in LIMITS.items()} | {"decoupled_mode": "False"}
    serve = {
        "free_ports": "true",
        "ready_file": str(folder / "ready.json"),
        "health_port": str(port()),
        "drain_timeout_s": "300",
        "exit_timeout_s": "300",
        "log_file": str(folder / "server.log"),
        "starts_per_second": "7",
        "max_silence_s": "300",
    }
    given = {**settings, **{f"serve__{key}": value for key, value in serve.items()}}
    return {
        **os.environ,
        **{f"BISTREAM__{key.upper()}": value for key, value in given.items()},
        "MODEL_DIR": str(model_dir),
        "MODEL_REPO": str(folder / "model_repo"),
        "PYTHON": sys.executable,
        "TRITON_SERVER": str(TRITON_SERVER),
        "TRITON_BACKENDS": str(TRITON_BACKENDS),
    }


def is_ready(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_it_renders_serves_drains_and_ends_at_the_second_signal(tmp_path: Path, tiny_spark_dir: Path, voice: Voice) -> None:
    environment = variables(tmp_path, tiny_spark_dir)
    health_port = environment["BISTREAM__SERVE__HEALTH_PORT"]
    log = tmp_path / "container.log"
    with log.open("w") as stream:
        container = subprocess.Popen([str(ROOT / "deploy/entrypoint.sh")], env=environment, cwd="/", stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready(health_port) and container.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert is_ready(health_port), log.read_text()
        config = (tmp_path / "model_repo/cosyvoice2_bistream/config.pbtxt").read_text(encoding="utf-8")
        assert f'"max_sessions" value {{ string_value: "{LIMITS["cosyvoice2_bistream.max_sessions"]}" }}' in config
        words = Path(f"/proc/{the_gate(container.pid)}/cmdline").read_text().split("\0")
        assert words[words.index("--starts-per-second") + 1] == "7.0"

        addresses = json.loads((tmp_path / "ready.json").read_text())
        check_upstreams_clients(addresses, voice)
        caller = Caller(addresses["grpc"], voice, SENTENCES)
        assert f"the server has room for {LIMITS['cosyvoice2_bistream.max_sessions']} sessions at a time" in log.read_text()
        caller.wait_audio()
        container.send_signal(signal.SIGTERM)  # to the process of the entrypoint, which has become the keeper
        wait_for(lambda: not is_ready(health_port), "the drain")
        assert container.poll() is None and caller.outcome == "nothing"
        container.send_signal(signal.SIGTERM)
        assert container.wait(PATIENCE_S) == 0
        # The gate and the models end at the same time: whichever is first says why.
        assert caller.wait_end(PATIENCE_S) and caller.ending in ("SHUTTING_DOWN", "ENGINE_ERROR")
        caller.close()
        assert processes_with(str(tmp_path)) == [] and shared_memory_of(container.pid) == []
    finally:
        container.kill()
        container.wait()


def check_upstreams_clients(addresses: dict[str, str], voice: Voice) -> None:
    wav, transcript, text = voice["reference_wav"][0], voice["reference_text"], "Hello there. How are you?"
    over_grpc = infer_offline(addresses["grpc"], wav, transcript, text, SPARK_MODEL)
    over_http = ask_over_http(addresses["http"], wav, transcript, text, SPARK_MODEL)
    assert over_grpc.size > 0 and over_grpc.size % 320 == 0  # samples of a token
    np.testing.assert_array_equal(over_grpc, over_http)


def the_gate(keeper: int) -> int:
    parent_of = parents()
    (found,) = [pid for pid in processes_with("--upstream") if parent_of.get(pid) == keeper]
    return found

"""The process that compiles the vocoder beside the flow: started once, waited for, and never a reason for a start to fail.

On a CPU it loads the plain vocoder, which compiles nothing; the process and its ends are real.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bistream.checkpoints.config import CheckpointConfig
from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.gpu.tier import Tier, TierChoice
from bistream.token2wav import vocoder_ahead
from bistream.token2wav.vocoder_ahead import compiling
from tests.unit.mel2wav.tiny import CAUSAL_CHECKPOINT

GRAPHS = TierChoice("vocoder", Tier.GRAPHS, "a GPU", ())


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "one.compiled"
    monkeypatch.setattr(vocoder_ahead, "_marker", lambda config, checkpoint: path)
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    processes: list[subprocess.Popen[str]] = []
    start = vocoder_ahead._start

    def noted(config: RuntimeConfig) -> subprocess.Popen[str] | None:
        if (process := start(config)) is not None:
            processes.append(process)
        return process

    monkeypatch.setattr(vocoder_ahead, "_start", noted)
    return processes


@pytest.fixture
def config(tiny_model_dir: Path) -> RuntimeConfig:
    return RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", max_sessions=1)


@pytest.fixture
def checkpoint() -> CheckpointConfig:
    return CAUSAL_CHECKPOINT


def test_it_runs_beside_the_first_start_alone(
    config: RuntimeConfig, checkpoint: CheckpointConfig, marker: Path, started: list[subprocess.Popen[str]]
) -> None:
    with compiling(config, checkpoint, GRAPHS):
        assert len(started) == 1 and not marker.exists()
    assert marker.is_file() and started[0].returncode == 0
    with compiling(config, checkpoint, GRAPHS):
        pass
    assert len(started) == 1


@pytest.mark.usefixtures("marker")
def test_the_plain_tier_and_the_other_vocoder_need_none(
    tiny_model_dir: Path, config: RuntimeConfig, checkpoint: CheckpointConfig, started: list[subprocess.Popen[str]]
) -> None:
    for sizes, choice in ((checkpoint, TierChoice("vocoder", Tier.PLAIN, "a GPU", ())), (read_config(tiny_model_dir), GRAPHS)):
        with compiling(config, sizes, choice):
            pass
    assert not started


def test_a_start_that_fails_ends_it(
    config: RuntimeConfig, checkpoint: CheckpointConfig, marker: Path, started: list[subprocess.Popen[str]]
) -> None:
    with pytest.raises(KeyError), compiling(config, checkpoint, GRAPHS):
        raise KeyError
    assert started[0].returncode is not None and not marker.exists()


def test_it_ends_with_its_input(config: RuntimeConfig) -> None:
    """So with the process that started it, however that ends."""
    code = (
        "import sys, time, types, bistream.token2wav.vocoder_ahead as ahead\n"
        "slow = types.SimpleNamespace(make_vocoder=lambda *arguments: time.sleep(600))\n"
        "sys.modules['bistream.mel2wav.factory'] = slow\n"
        "ahead.main()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(config)) + "\n")
        process.stdin.close()
        assert process.wait(240) == 1


def test_where_no_process_can_be_started(
    config: RuntimeConfig, checkpoint: CheckpointConfig, marker: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with compiling(config, checkpoint, GRAPHS):
        pass
    assert "no process can be started for the vocoder" in caplog.text and not marker.exists()

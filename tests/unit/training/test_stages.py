"""Stages that are complete cost nothing, and a lot on a host that has only part of it goes on with the rest."""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from training import stages
from training.corpus import SHARD_TEXTS, plan_shards
from training.gpu_lot import LARGEST_FILE, Lot
from training.sizes import SIZES, SMOKE, VOICE, size_name, with_steps
from training.voices import VOICES

ROOT = Path(__file__).resolve().parents[3]


def work_in(folder: Path) -> stages.Work:
    return stages.Work(folder, SMOKE, torch.device("cpu"), time.monotonic() + 240, 1.0, 0, 1)


@pytest.mark.parametrize("name", ["tokenizer", "speaker", "language_model", "flow", "vocoder"])
def test_complete_stage_needs_no_corpus(name: str, tmp_path: Path) -> None:
    work, stage = work_in(tmp_path), getattr(stages, name)
    with pytest.raises(FileNotFoundError, match="run the stage"):
        stage(work)
    torch.save({"step": 10**6, "modules": {}}, work.folders.travel / f"{name}.pt")
    assert stage(work)


def test_shards_speak_every_text_and_are_the_same_each_time() -> None:
    lengths = [40 + number % 60 for number in range(5000)]
    tasks = plan_shards(lengths)
    assert tasks == plan_shards(lengths) and len({task.name for task in tasks}) == len(tasks)
    assert {text for task in tasks for text in task.texts} == set(range(5000))
    assert all(0 < len(task.texts) <= SHARD_TEXTS for task in tasks)
    shares = {number: sum(len(task.texts) for task in tasks if task.voice == number) for number in range(len(VOICES))}
    assert shares[0] == pytest.approx(shares[1], rel=0.02)
    assert {task.voice for task in tasks[:20]} == set(range(len(VOICES)))  # a part of the corpus has all voices


def test_voices_of_a_rehearsal_keep_their_numbers() -> None:
    tasks = plan_shards([40] * 50, 0.001, ["felix"])
    assert {VOICES[task.voice].name for task in tasks} == {"felix"}


def test_pieces_draw_other_batches(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    assert stages._piece_seed(work, "flow") == work.seed
    torch.save({"step": 700, "modules": {}}, work.folders.travel / "flow.pt")
    assert (stages._piece_seed(work, "flow"), stages._piece_seed(work, "vocoder")) == (work.seed + 700, work.seed)


def test_host_of_a_lot_needs_few_packages() -> None:
    """What a host with PyTorch has, README.md says; everything else is imported by the stages that run elsewhere."""
    absent = ("onnx", "onnxruntime", "soundfile", "matplotlib", "tritonclient", "grpc", "google", "scipy", "httpx", "safetensors")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import training.gpu_lot, training.make"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of the stages that a lot began, all of which end well."""
    commands: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], **_: object) -> None:
            commands.append(command)

        def wait(self, timeout: float) -> int:
            return 0

    monkeypatch.setattr("training.gpu_lot.subprocess.Popen", Process)
    return commands


def names_of(commands: list[list[str]]) -> list[str]:
    return [command[command.index("--stage") + 1] for command in commands]


def test_lot_gives_its_stages_the_time_at_which_it_ends(tmp_path: Path, started: list[list[str]]) -> None:
    earliest = time.monotonic() + 900
    lot = Lot(Namespace(folder=tmp_path, only=["flow"], out=tmp_path / "out", seconds=1000.0), ["--size", "smoke"])
    latest = time.monotonic() + 1000
    (tmp_path / "travel").mkdir()
    assert lot.run() == 0
    assert names_of(started) == ["corpus", "codes", "flow"]
    ends = {float(command[command.index("--until") + 1]) for command in started}
    assert len(ends) == 1 and earliest < ends.pop() < latest


@pytest.mark.parametrize(("only", "expected"), [
    (["language_model"], ["language_model"]),
    (["language_model", "vocoder"], ["language_model", "corpus", "codes", "vocoder"]),
])  # fmt: skip
def test_language_model_with_speech_tokens_from_elsewhere_waits_for_nothing(
    only: list[str], expected: list[str], tmp_path: Path, started: list[list[str]]
) -> None:
    for name in ("travel", "carried"):
        (tmp_path / name).mkdir()
    (tmp_path / "carried" / "utterances.npz").touch()
    assert Lot(Namespace(folder=tmp_path, only=only, out=tmp_path / "out", seconds=1000.0), []).run() == 0
    assert names_of(started) == expected


def test_lot_packs_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "travel").mkdir()
    (tmp_path / "travel" / "flow.pt").write_bytes(b"small")
    with (tmp_path / "travel" / "large.pt").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    lot = Lot(Namespace(folder=tmp_path, only=[], out=tmp_path / "out", seconds=0.0), [])
    assert lot.run() == 0  # no time for a stage
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"flow.pt", "curves_and_logs.tar.gz"}
    assert "large.pt has 16.0 MiB and stays here" in capsys.readouterr().out


def test_a_plan_can_be_prolonged_and_stays_the_plan_of_the_same_networks() -> None:
    longer = with_steps(VOICE, {"language_model": 30_000, "vocoder": 16_000})
    assert longer.plan.language_model_steps == 30_000 and longer.plan.flow_steps == VOICE.plan.flow_steps
    assert (longer.plan.vocoder_steps, longer.plan.vocoder_gan_steps) == (VOICE.plan.vocoder_steps, 16_000 - VOICE.plan.vocoder_steps)
    assert size_name(longer) == "voice" and with_steps(VOICE, {}) is VOICE
    assert [size_name(sizes) for name, sizes in SIZES.items() if name != "trial"] == [name for name in SIZES if name != "trial"]
    with pytest.raises(ValueError, match="knows no network mouth"):
        with_steps(VOICE, {"mouth": 1})

"""Stages that are complete cost nothing; the corpus and the plan are what they were asked to be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from training import stages
from training.corpus import SHARD_TEXTS, plan_shards
from training.sizes import SIZES, SMOKE, VOICE, size_name, with_steps
from training.voices import VOICES


def work_in(folder: Path) -> stages.Work:
    return stages.Work(folder, SMOKE, torch.device("cpu"), time.monotonic() + 240, 1.0, 0, 1)


@pytest.mark.parametrize("name", ["tokenizer", "speaker", "language_model", "flow", "vocoder"])
def test_complete_stage_needs_no_corpus(name: str, tmp_path: Path) -> None:
    work, stage = work_in(tmp_path), getattr(stages, name)
    with pytest.raises(FileNotFoundError, match="run the stage"):
        stage(work)
    work.checkpoints.mkdir()
    torch.save({"step": 10**6, "modules": {}}, work.checkpoints / f"{name}.pt")
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


def test_a_plan_can_be_prolonged_and_stays_the_plan_of_the_same_networks() -> None:
    longer = with_steps(VOICE, {"language_model": 30_000, "vocoder": 16_000})
    assert longer.plan.language_model_steps == 30_000 and longer.plan.flow_steps == VOICE.plan.flow_steps
    assert (longer.plan.vocoder_steps, longer.plan.vocoder_gan_steps) == (VOICE.plan.vocoder_steps, 16_000 - VOICE.plan.vocoder_steps)
    assert size_name(longer) == "voice" and with_steps(VOICE, {}) is VOICE
    assert [size_name(sizes) for sizes in SIZES.values()] == list(SIZES)
    with pytest.raises(ValueError, match="knows no network mouth"):
        with_steps(VOICE, {"mouth": 1})

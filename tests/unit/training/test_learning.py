"""Every network learns: on a handful of buzzes its loss falls, and a run that was interrupted goes on where it stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.training.small_corpus import SIZES, small_corpus
from training.bpe import TextIds, write_tokenizer
from training.corpus_data import Corpus
from training.flow_task import FlowMels, FlowTask
from training.language_model_data import LanguageModelBatches, Utterances
from training.language_model_task import LanguageModelTask
from training.layouts import IGNORED
from training.loop import Task, load_network, train
from training.speaker_task import SpeakerNetwork, SpeakerTask
from training.tokenizer_task import TokenizerTask, encode_corpus
from training.vocoder_task import VocoderTask


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    torch.set_num_threads(1)
    return small_corpus(tokens=100)


def codes_of(corpus: Corpus) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    return (corpus.phones[::2].numpy() * 3).astype(np.uint16)


def speaker() -> SpeakerNetwork:
    return SpeakerNetwork(SIZES.speaker_width, SIZES.speaker_layers, SIZES.checkpoint.flow.spk_embed_dim)


TEXTS = [f"the sound of number {number} is here" for number in range(20)]


def falls(task: Task, name: str, share: float, steps: int) -> None:
    """The mean of the last five steps is below that share of the first ones' mean."""
    values = [float(task.step(number)[name]) for number in range(steps)]
    assert np.mean(values[-5:]) < share * np.mean(values[:3]), values


def test_tokenizer_and_its_codes(corpus: Corpus, tmp_path: Path) -> None:
    task = TokenizerTask(corpus, SIZES, voices=2)
    falls(task, "mel", 0.8, 17)
    codes = encode_corpus(task.network.eval(), corpus, tmp_path / "codes.npy", rows=3)
    assert codes.shape == (corpus.num_tokens,) and codes.max() < 3**SIZES.tokenizer.digits
    assert np.array_equal(codes, np.load(tmp_path / "codes.npy"))
    again = encode_corpus(task.network, corpus, tmp_path / "again.npy", rows=8)
    assert np.mean(codes == again) > 0.95  # batches of another size sum in another order


def test_speaker_encoder(corpus: Corpus) -> None:
    falls(SpeakerTask(corpus, SIZES, voices=2), "margin", 0.9, 20)


def test_language_model(corpus: Corpus, tmp_path: Path) -> None:
    write_tokenizer(TEXTS, tmp_path, SIZES.bpe_entries)
    task = LanguageModelTask(Utterances.of(corpus, codes_of(corpus), TEXTS), TextIds(TEXTS, tmp_path), SIZES, torch.device("cpu"))
    falls(task, "speech", 0.8, 12)


def test_validation_texts_are_never_trained_on(corpus: Corpus, tmp_path: Path) -> None:
    from bistream.text2token.engine import TokenSpace  # noqa: PLC0415

    texts = ["a b c"] * 60
    write_tokenizer(texts, tmp_path, SIZES.bpe_entries)
    data = Utterances(
        codes_of(corpus),
        corpus.phones.numpy()[::2],
        np.zeros(corpus.num_tokens, np.uint8),
        corpus.starts,
        corpus.tokens,
        corpus.voices,
        np.array([50, 1, 2, 3, 50, 5, 6, 7]),
    )
    data.codes[:100] = 500  # of text 50 alone
    space, ids = TokenSpace.of(SIZES.checkpoint.language_model), TextIds(texts, tmp_path)
    batch = iter(LanguageModelBatches(data, ids, space, 400, seed=0))
    for _ in range(5):
        inputs, targets, aligned, phones = next(batch)
        assert inputs.shape == targets.shape == aligned.shape[1:] == phones.shape[1:]
        assert not (targets == 500).any() and (targets != IGNORED).any()
    assert (next(iter(LanguageModelBatches(data, ids, space, 400, seed=0, is_validation=True)))[1] == 500).any()


def test_flow_and_its_mels(corpus: Corpus) -> None:
    task = FlowTask(corpus, codes_of(corpus), speaker(), SIZES)
    before = np.mean([task.loss(4, 50).item() for _ in range(6)])
    for number in range(22):
        task.step(number)
    assert np.mean([task.loss(4, 50).item() for _ in range(6)]) < 0.92 * before
    mel = FlowMels(corpus, codes_of(corpus), task.network, speaker())(torch.tensor([100, 200]), 10)
    assert mel.shape == (2, 20, 80) and mel.isfinite().all()


def test_vocoder_before_and_with_discriminators(corpus: Corpus) -> None:
    task = VocoderTask(corpus, replace(SIZES, plan=replace(SIZES.plan, vocoder_steps=9)))
    falls(task, "spectrum", 0.9, 9)
    with_discriminators = task.step(9)
    assert set(with_discriminators) == {"spectrum", "mel", "pitch", "against", "fooled", "features"}
    assert all(value.isfinite() for value in with_discriminators.values())
    rates = [group["lr"] for group in task.optimizers["generator"].param_groups]
    assert rates == [4e-4, 4e-4]  # half of what the spectral steps had
    assert all(parameter.requires_grad for parameter in task.discriminators.parameters())


class Counting:
    """A task that learns one number, by steps of 1 at the full rate."""

    name, total_steps, warmup_steps = "counting", 12, 0

    def __init__(self) -> None:
        self.module = torch.nn.Linear(1, 1)
        self.modules: Mapping[str, torch.nn.Module] = {"network": self.module}
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {"adam": torch.optim.Adam(self.module.parameters(), 0.1)}
        self.numbers: list[int] = []

    def step(self, number: int) -> dict[str, Tensor]:
        self.numbers.append(number)
        self.optimizers["adam"].zero_grad()
        loss = (self.module.weight - 3).square().sum() + self.module.bias.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers["adam"].step()
        return {"loss": loss.detach()}


class Bursting(Counting):
    """Its loss is not a number from the third step on."""

    def step(self, number: int) -> dict[str, Tensor]:
        return {"loss": super().step(number)["loss"] * (math.nan if number >= 2 else 1.0)}


def test_checkpoint_with_a_bad_loss_is_not_written(tmp_path: Path) -> None:
    assert not train(Counting(), tmp_path, time.monotonic() - 1, quiet=True)
    kept = (tmp_path / "counting.pt").read_bytes()
    with pytest.raises(FloatingPointError, match="goes on from the last checkpoint"):
        train(Bursting(), tmp_path, time.monotonic() + 60, quiet=True)
    assert (tmp_path / "counting.pt").read_bytes() == kept


def test_interrupted_training_equals_one_run(tmp_path: Path) -> None:
    whole, first = Counting(), Counting()
    first.module.load_state_dict(whole.module.state_dict())
    assert train(whole, tmp_path / "whole", time.monotonic() + 240, quiet=True)
    pieces = tmp_path / "pieces"
    assert not train(first, pieces, time.monotonic() - 1, quiet=True)  # saved before its first step
    second = Counting()
    assert train(second, pieces, time.monotonic() + 240, quiet=True)
    assert second.numbers == list(range(12)) and torch.equal(second.module.weight, whole.module.weight)
    exported = torch.nn.Linear(1, 1)
    assert load_network(pieces, "counting", exported) == 12
    assert torch.equal(exported.weight, whole.module.weight.half().float())

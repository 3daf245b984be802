"""The stages of ``make.py``. Each resumes where it stopped, ends by its deadline, and says whether it is complete."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bistream.token2mel.flow import FlowNetwork
from bistream.voice.s3_network import S3Network
from training import packages
from training.bpe import TextIds, write_tokenizer
from training.corpus import make_corpus, plan_shards
from training.corpus_data import Corpus, load_corpus, pack_shards
from training.flow_task import FlowMels, FlowTask
from training.language_model_data import Utterances
from training.language_model_task import LanguageModelTask
from training.loop import Task, load_network, steps_done, train
from training.sizes import Sizes
from training.speaker_task import SpeakerNetwork, SpeakerTask
from training.texts import TextPlan, make_texts, read_texts, write_texts
from training.tokenizer_task import TokenizerTask, encode_corpus
from training.vocoder_task import VocoderTask
from training.voices import VOICES


@dataclass(frozen=True)
class Work:
    """The folders. carried: files that a bare machine needs; checkpoints: of the networks; work: files that can be made again.

    deadline: of ``time.monotonic``. hours: scale of the corpus. voices: names of those that speak; none: all.
    """

    root: Path
    sizes: Sizes
    device: torch.device
    deadline: float
    hours: float
    seed: int
    processes: int
    voices: tuple[str, ...] = ()

    @property
    def carried(self) -> Path:
        return self.root / "carried"

    @property
    def archive(self) -> Path:
        return self.carried / "teachers.tar.xz"

    @property
    def texts_file(self) -> Path:
        return self.carried / "texts.jsonl.xz"

    @property
    def teachers(self) -> Path:
        return self.root / "work" / "teachers"

    @property
    def packed(self) -> Path:
        return self.root / "work" / "packed"

    @property
    def codes_file(self) -> Path:
        return self.root / "work" / "codes.npy"

    @property
    def utterances_file(self) -> Path:
        return self.root / "work" / "utterances.npz"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @cached_property
    def texts(self) -> list[str]:
        return [text for _, text in read_texts(self.texts_file)]

    def corpus(self) -> Corpus:
        return load_corpus(self.packed, self.device)

    def codes(self) -> NDArray[np.uint16]:
        if not self.codes_file.exists():
            raise FileNotFoundError(f"{self.codes_file} does not exist; run the stage codes first.")
        codes: NDArray[np.uint16] = np.load(self.codes_file)
        return codes

    def utterances(self) -> Utterances:
        if not self.utterances_file.exists():
            raise FileNotFoundError(f"{self.utterances_file} does not exist; run the stage codes first.")
        return Utterances.load(self.utterances_file)

    def trained(self, name: str, network: torch.nn.Module) -> int:
        """Weights as they will be exported, on the device; returns their step. Raises ``FileNotFoundError``."""
        return load_network(self.checkpoints, name, network.to(self.device))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def prepare(work: Work) -> bool:
    """Packages, text, text tokenizer: the only stage that needs the network and Debian."""
    downloads, unpacked = work.root / "work" / "packages", work.root / "work" / "unpacked"
    packages.download([*packages.TEACHERS, *packages.TEXTS], downloads)
    if not work.archive.exists():
        packages.unpack(downloads, unpacked)
        _made(work.carried)
        packages.pack(unpacked, work.archive)
    if not work.texts_file.exists():
        share = unpacked / "usr/share"
        write_texts(make_texts(share / "wordnet", share / "dict/scowl", TextPlan()), work.texts_file)
    write_tokenizer(work.texts, work.carried, work.sizes.bpe_entries)
    size = sum(path.stat().st_size for path in work.carried.rglob("*") if path.is_file())
    print(f"{work.carried}: {size / 1e6:.1f} MB to carry, {len(work.texts)} texts")
    return True


def corpus(work: Work) -> bool:
    """Speech of all voices, with phones."""
    if (work.packed / "index.npz").exists():
        return True
    if not (work.teachers / "usr").exists():
        packages.extract(work.archive, work.teachers)
    tasks = plan_shards([len(text) for text in work.texts], work.hours, work.voices)
    shards = work.root / "work" / "shards"
    if not make_corpus(work.teachers, shards, work.texts, tasks, work.deadline, work.processes):
        return False
    pack_shards(shards, work.packed)
    return True


def tokenizer(work: Work) -> bool:
    if steps_done(work.checkpoints, "tokenizer") >= work.sizes.plan.tokenizer_steps:  # without loading the corpus
        return True
    return _train(work, TokenizerTask(work.corpus(), work.sizes, len(VOICES), _piece_seed(work, "tokenizer")))


def codes(work: Work) -> bool:
    """With the float16 weights that are exported, so that a server gets the same ones."""
    network = S3Network(work.sizes.tokenizer)
    step = work.trained("tokenizer", network)
    speech = work.corpus()
    found = encode_corpus(network.eval(), speech, work.codes_file, 256 if work.device.type == "cuda" else 16)
    Utterances.of(speech, found, work.texts).save(work.utterances_file)
    used = np.bincount(found, minlength=1)
    share = used[used > 0] / used.sum()
    print(f"codes of tokenizer step {step}: {len(share)} in use, {-(share * np.log2(share)).sum():.2f} bit")
    return True


def speaker(work: Work) -> bool:
    if steps_done(work.checkpoints, "speaker") >= work.sizes.plan.speaker_steps:
        return True
    return _train(work, SpeakerTask(work.corpus(), work.sizes, len(VOICES), _piece_seed(work, "speaker")))


def _speaker_network(work: Work) -> SpeakerNetwork:
    sizes = work.sizes
    network = SpeakerNetwork(sizes.speaker_width, sizes.speaker_layers, sizes.checkpoint.flow.spk_embed_dim)
    work.trained("speaker", network)
    return network


def language_model(work: Work) -> bool:
    if steps_done(work.checkpoints, "language_model") >= work.sizes.plan.language_model_steps:
        return True
    seed = _piece_seed(work, "language_model")
    return _train(work, LanguageModelTask(work.utterances(), TextIds(work.texts, work.carried), work.sizes, work.device, seed))


def flow(work: Work) -> bool:
    if steps_done(work.checkpoints, "flow") >= work.sizes.plan.flow_steps:
        return True
    return _train(work, FlowTask(work.corpus(), work.codes(), _speaker_network(work), work.sizes, _piece_seed(work, "flow")))


def vocoder(work: Work) -> bool:
    if steps_done(work.checkpoints, "vocoder") >= work.sizes.plan.vocoder_steps + work.sizes.plan.vocoder_gan_steps:
        return True
    data = work.corpus()
    task = VocoderTask(data, work.sizes, _piece_seed(work, "vocoder"), lambda: _flow_mels(work, data))
    return _train(work, task)


def _flow_mels(work: Work, data: Corpus) -> FlowMels | None:
    """Of the newest checkpoint, which another process may be training; None while it is less than half done."""
    if not ((work.checkpoints / "flow.pt").exists() and work.codes_file.exists()):
        return None
    network = FlowNetwork(work.sizes.checkpoint.flow)
    if work.trained("flow", network) < work.sizes.plan.flow_steps // 2:
        return None
    return FlowMels(data, work.codes(), network, _speaker_network(work))


def _train(work: Work, task: Task) -> bool:
    return train(task, work.checkpoints, work.deadline)


def _piece_seed(work: Work, name: str) -> int:
    """Another one after every piece, or a resumed piece would draw its first batches again."""
    return work.seed + steps_done(work.checkpoints, name)

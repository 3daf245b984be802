"""The corpus in memory: all shards as a few long tensors on one device, and utterances as places in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.families.cosyvoice2 import AUDIO_FORMAT
from training.teachers import TOKEN_SAMPLES

FRAMES_PER_TOKEN = TOKEN_SAMPLES // AUDIO_FORMAT.samples_per_mel_frame


@dataclass(frozen=True)
class Corpus:
    """Utterances of one voice stand together. audio: int16 [N] at 24 kHz; phones: uint8 [N / 480]; on the device.

    starts, tokens, voices, texts: int64 [U], on the host: first speech token, number of tokens, voice and line of the text.
    """

    audio: Tensor
    phones: Tensor
    starts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    voices: NDArray[np.int64]
    texts: NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.sum())

    @property
    def device(self) -> torch.device:
        return self.audio.device

    def voice_ranges(self) -> dict[int, tuple[int, int]]:
        """First and last token + 1 of each voice."""
        ends = self.starts + self.tokens
        return {int(voice): (int(self.starts[mask].min()), int(ends[mask].max())) for voice, mask in self._masks()}

    def _masks(self) -> list[tuple[int, NDArray[np.bool_]]]:
        return [(voice, self.voices == voice) for voice in np.unique(self.voices)]

    def waveforms(self, first_tokens: Tensor, count: int) -> Tensor:
        """first_tokens int64 [B], on the device -> float32 [B, 960 count] in [-1, 1]."""
        index = first_tokens[:, None] * TOKEN_SAMPLES + torch.arange(count * TOKEN_SAMPLES, device=self.device)
        return self.audio[index].float() / 32768.0

    def phone_frames(self, first_tokens: Tensor, count: int) -> Tensor:
        """int64 [B, 2 count]."""
        index = first_tokens[:, None] * FRAMES_PER_TOKEN + torch.arange(count * FRAMES_PER_TOKEN, device=self.device)
        return self.phones[index].long()


def pack_shards(shards: Path, packed: Path) -> None:
    """Join all shards, those of a voice together, into three files that load at once. Raises ``FileNotFoundError`` without shards."""
    paths = sorted(shards.glob("*.npz"))
    if not paths:
        raise FileNotFoundError(f"{shards} has no shards; run the stage corpus first.")
    packed.mkdir(parents=True, exist_ok=True)
    samples, texts, voices = list[NDArray[np.int64]](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    with (packed / "audio.raw").open("wb") as audio, (packed / "phones.raw").open("wb") as phones:
        for path in paths:
            with np.load(path) as shard:
                shard["audio"].tofile(audio)
                shard["phones"].tofile(phones)
                samples.append(shard["samples"].astype(np.int64))
                texts.append(shard["texts"].astype(np.int64))
                voices.append(np.full(len(shard["texts"]), int(shard["voice"]), np.int64))
    tokens = np.concatenate(samples) // TOKEN_SAMPLES
    np.savez(packed / "index.npz", tokens=tokens, texts=np.concatenate(texts), voices=np.concatenate(voices))  # last: the others are whole


def load_corpus(packed: Path, device: torch.device) -> Corpus:
    """Raises ``FileNotFoundError``."""
    if not (packed / "index.npz").exists():
        raise FileNotFoundError(f"{packed} has no packed corpus; run the stage corpus first.")
    with np.load(packed / "index.npz") as index:
        tokens, texts, voices = index["tokens"], index["texts"], index["voices"]
    audio = torch.from_file(str(packed / "audio.raw"), size=int(tokens.sum()) * TOKEN_SAMPLES, dtype=torch.int16)
    phones = torch.from_file(str(packed / "phones.raw"), size=int(tokens.sum()) * FRAMES_PER_TOKEN, dtype=torch.uint8)
    return Corpus(audio.to(device), phones.to(device), np.cumsum(tokens) - tokens, tokens, voices, texts)


class CropSampler:
    """Random stretches of speech of one voice each; a stretch may cross from one utterance to the next."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        ranges = corpus.voice_ranges()
        self._voices = np.array(list(ranges))
        self._firsts = np.array([first for first, _ in ranges.values()])
        self._lasts = np.array([last for _, last in ranges.values()])
        weights = np.sqrt(self._lasts - self._firsts)  # between equal shares of the voices and of the seconds
        self._weights = weights / weights.sum()
        self._device = corpus.device

    def draw(self, rows: int, count: int) -> tuple[Tensor, Tensor]:
        """First tokens int64 [rows] of stretches of ``count`` tokens, and their voices int64 [rows]; on the device.

        Voices with less speech than that are left out. Raises ``ValueError`` when none has enough.
        """
        room = self._lasts - self._firsts - count
        weights = np.where(room > 0, self._weights, 0.0)
        if not weights.sum():
            raise ValueError(f"No voice of the corpus has {count} tokens of speech; make more of it.")
        voices = self._random.choice(len(room), rows, p=weights / weights.sum())
        firsts = self._firsts[voices] + (self._random.random(rows) * room[voices]).astype(np.int64)
        return torch.from_numpy(firsts).to(self._device), torch.from_numpy(self._voices[voices]).to(self._device)

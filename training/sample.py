"""Where is the fault? Held-out sentences of a teacher through one more trained network at a time, as WAV files for the judges.

vocoder: the teacher's mels through the vocoder. flow: the teacher's codes through flow and vocoder, its first two seconds as prompt;
flow_griffin_lim: the same without our vocoder, so that a vocoder that is short of steps does not hide what the flow can do. Griffin-Lim
from the teacher's mels, the teacher itself and noise stand beside them (ceiling and floor).

Example:  python -m training.sample --set a --voice nora --out build/voice/judged
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
import torch
from tqdm import tqdm

from bistream.checkpoint import read_config
from bistream.mel2wav.hift import HiFT, SourceStart
from bistream.mel2wav.weights import load_hift
from bistream.rates import REFERENCE_SAMPLE_RATE, SAMPLE_RATE
from bistream.resample import resample
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.memory import BlankMemory
from bistream.token2mel.weights import load_network
from bistream.types import FloatArray
from bistream.voice.features import MEL_BINS, MEL_FFT, MEL_HIGH_HZ, mel_24k, slaney_mel_filters
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer
from training import teachers
from training.flow_mels import PROMPT_TOKENS, flow_batch
from training.heldout import sentences
from training.voices import voice_named

_GRIFFIN_LIM_ROUNDS = 60
_HOP = 480
System = Callable[[FloatArray], FloatArray]


def griffin_lim(mel: FloatArray, rounds: int = _GRIFFIN_LIM_ROUNDS) -> FloatArray:
    """mel [T, 80] -> waveform: what the mel holds, without a trained network (Griffin and Lim 1984)."""
    filters = torch.from_numpy(slaney_mel_filters(SAMPLE_RATE, MEL_FFT, MEL_BINS, 0.0, MEL_HIGH_HZ).astype(np.float32))
    magnitude = (torch.linalg.pinv(filters) @ torch.from_numpy(mel.T.copy()).exp()).clamp(min=1e-5)
    window = torch.hann_window(MEL_FFT)
    phase = 2 * torch.pi * torch.rand(magnitude.shape, generator=torch.Generator().manual_seed(0))
    for _ in range(rounds):
        signal = torch.istft(torch.polar(magnitude, phase), MEL_FFT, _HOP, window=window)
        phase = torch.stft(signal, MEL_FFT, _HOP, window=window, return_complex=True).angle()
    waveform: FloatArray = torch.istft(torch.polar(magnitude, phase), MEL_FFT, _HOP, window=window).numpy()
    return waveform


@torch.no_grad()
def vocode(network: HiFT, mel: torch.Tensor) -> FloatArray:
    """mel [1, 80, T] -> waveform, from silence on."""
    f0 = network.f0(mel)
    frames = torch.tensor([mel.shape[2]])
    phases = torch.zeros(1, network.config.nb_harmonics + 1, dtype=torch.float64)
    start = SourceStart(phases, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool), frames)
    noise = torch.randn(1, mel.shape[2] * _HOP, generator=torch.Generator().manual_seed(0)) * network.m_source.noise_gain()
    waveform: FloatArray = network.decode(mel, network.m_source(f0, noise, start)[0], frames)[0].numpy()
    return waveform


class Copies:
    """The networks of a model directory, one after another."""

    def __init__(self, directory: Path) -> None:
        config, cpu = read_config(directory), torch.device("cpu")
        self.vocoder = load_hift(directory, config.vocoder, cpu)
        self.flow: FlowNetwork = load_network(directory, config.flow, cpu, torch.float32)
        self.tokenizer = SpeechTokenizer.from_model_dir(directory, "cpu", 1)
        self.encoder = SpeakerEncoder.from_model_dir(directory, "cpu", 1)

    def of_mel(self, waveform: FloatArray) -> FloatArray:
        return vocode(self.vocoder, torch.from_numpy(mel_24k(waveform).T.copy())[None])

    def of_codes(self, waveform: FloatArray) -> FloatArray:
        return vocode(self.vocoder, self.mel_of_codes(waveform).T[None])

    def griffin_lim_of_codes(self, waveform: FloatArray) -> FloatArray:
        return griffin_lim(self.mel_of_codes(waveform).numpy())

    def mel_of_codes(self, waveform: FloatArray) -> torch.Tensor:
        """The whole sentence, behind itself as prompt: [T, 80]."""
        heard = resample(waveform, SAMPLE_RATE, REFERENCE_SAMPLE_RATE)
        codes = torch.from_numpy(self.tokenizer.tokens(heard).astype(np.int64))
        tokens = min(len(codes), len(waveform) // (2 * _HOP))
        prompt = min(PROMPT_TOKENS, tokens)
        ids = torch.cat([codes[:prompt], codes[:tokens]])[None]
        mel = torch.from_numpy(mel_24k(waveform))[None, : 2 * prompt]
        batch = flow_batch(ids, mel, torch.from_numpy(self.encoder.embedding(heard))[None], self.flow.config)
        made: torch.Tensor = self.flow(batch, BlankMemory())
        return made[0, 2 * prompt :]


def noise_like(waveform: FloatArray) -> FloatArray:
    level = float(np.sqrt(np.mean(waveform**2)))
    return (level * np.random.default_rng(0).standard_normal(len(waveform))).astype(np.float32)


UNTRAINED: dict[str, System] = {"teacher": np.copy, "griffin_lim": lambda waveform: griffin_lim(mel_24k(waveform)), "noise": noise_like}
TRAINED: dict[str, Callable[[Copies, FloatArray], FloatArray]] = {
    "vocoder": Copies.of_mel,
    "flow": Copies.of_codes,
    "flow_griffin_lim": Copies.griffin_lim_of_codes,
}


def write_system(name: str, system: System, recordings: list[FloatArray], texts: list[str], out: Path) -> None:
    """OUT/NAME/NUMBER.wav and texts.json, as ``benchmarks/voice_quality.py`` reads them."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, waveform in enumerate(tqdm(recordings, desc=name, unit="sentence")):
        soundfile.write(folder / f"{number:03d}.wav", system(waveform), SAMPLE_RATE, subtype="PCM_16")
    lengths = [len(waveform) / SAMPLE_RATE for waveform in recordings]
    (folder / "texts.json").write_text(json.dumps({"texts": texts, "teacher_s": lengths}), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="a", choices=("a", "b", "c", "d", "e"))
    parser.add_argument("--voice", default="nora")
    parser.add_argument("--count", type=int, default=1000, help="sentences at most")
    parser.add_argument("--folder", type=Path, default=Path("build/voice"))
    parser.add_argument("--out", type=Path, default=Path("build/voice/judged"))
    parser.add_argument("--systems", nargs="+", choices=(*UNTRAINED, *TRAINED), default=[*UNTRAINED, *TRAINED], help="(default: all)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    texts = list(sentences(arguments.set))[: arguments.count]
    spoken = teachers.speak(arguments.folder / "work" / "unpacked", voice_named(arguments.voice), texts)
    recordings = [utterance.waveform.astype(np.float32) / 32768.0 for utterance in spoken if utterance is not None]
    if len(recordings) < len(texts):  # the numbers of files and texts would no longer agree
        sys.exit(f"The teacher of {arguments.voice} spoke only {len(recordings)} of {len(texts)} sentences; run the stage prepare again.")
    systems = dict(UNTRAINED)
    if not UNTRAINED.keys() >= set(arguments.systems):
        copies = Copies(arguments.folder / "model")
        systems |= {name: partial(method, copies) for name, method in TRAINED.items()}
    for name in arguments.systems:
        write_system(f"{arguments.voice}-{arguments.set}-{name}", systems[name], recordings, texts, arguments.out)


if __name__ == "__main__":
    main()

"""Speed of token2wav (flow and vocoder) on random weights, without a server: hops of one and of many sessions together.

    python benchmarks/token2wav.py [--family cosyvoice2|cosyvoice3] [--kernels auto|graphs|plain] [--out FILE]
    python benchmarks/token2wav.py --size tiny                                                      runs on a CPU in seconds

A hop takes a session's new speech tokens through flow and vocoder to audio on the host; times are wall times, medians.
First hop: 18 new tokens, of which 15 are spoken; the voices are known and 2 to 10 s long. Steady hop: 25 tokens that end on a chunk
boundary, as the hop policy chooses them, after 10 s of stored context. Where the state of so many sessions does not fit into the memory,
the largest number that fits is measured instead. Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import report, synchronize, table
from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.families.cosyvoice2 import AUDIO_FORMAT, COSYVOICE2
from bistream.mel2wav.factory import expected_shapes as vocoder_shapes
from bistream.mel2wav.factory import make_vocoder
from bistream.mel2wav.stage import VocoderHop
from bistream.mel2wav.state import VocoderSessionState
from bistream.token2mel.factory import expected_shapes as flow_shapes
from bistream.token2mel.pages import memory_bytes
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.token2mel.state import FlowState
from bistream.types import VoicePrompt
from scripts._random_weights import Drawer, flow_state, vocoder_state
from scripts.make_checkpoint import FAMILY_SIZES

FIRST_HOP_TOKENS = 15 + AUDIO_FORMAT.lookahead_tokens
PROMPT_S, VOICES_S, VOICES = 3.0, (2.0, 10.0), 16
CONTEXT_S = 10.0  # of a steady hop, prompt included
MAX_BATCH = 64  # hops, as in the service
STATE_SHARE, MOST_STATE_MB = 0.8, 100_000  # of the free memory: the rest is for the vocoder, recorded graphs and activations
SESSIONS = {"full": [1, 8, 64, 256], "tiny": [1, 4]}


@dataclass
class Session:
    flow: FlowState
    vocoder: VocoderSessionState

    def close(self) -> None:
        self.flow.close()
        self.vocoder.close()


class Rig:
    """Flow and vocoder as the service runs them."""

    def __init__(self, sizes: CheckpointConfig, config: RuntimeConfig) -> None:
        self.sizes = sizes
        began = time.perf_counter()
        self.flow = FlowStage(config, sizes)
        self.vocoder = make_vocoder(config, sizes)
        self.device = self.flow.device
        self._drawn: list[int] = np.random.default_rng(1).integers(0, sizes.flow.vocab_size, 20_000).tolist()
        synchronize(self.device)
        self.startup_s = time.perf_counter() - began

    def prompt(self, seconds: float, seed: int = 0) -> VoicePrompt:
        rng, count, config = np.random.default_rng(seed), round(seconds * AUDIO_FORMAT.tokens_per_second), self.sizes.flow
        return VoicePrompt(
            prompt_text="",
            speech_tokens=rng.integers(0, config.vocab_size, count).astype(np.int32),
            speech_feat=rng.standard_normal((2 * count, config.output_size)).astype(np.float32),
            speaker_embedding=rng.standard_normal(config.spk_embed_dim).astype(np.float32),
        )

    def open(self, prompt: VoicePrompt, seed: int) -> Session:
        return Session(self.flow.open(prompt), self.vocoder.open(seed))

    @torch.inference_mode()
    def hop(self, sessions: Sequence[Session], counts: Sequence[int]) -> None:
        """``counts`` new tokens of each session through flow and vocoder, in batches as the service makes them."""
        for first in range(0, len(sessions), MAX_BATCH):
            part = range(first, min(first + MAX_BATCH, len(sessions)))
            hops = [FlowHop(sessions[index].flow, self._tokens(counts[index], index), False) for index in part]
            mels = []
            for mel in self.flow.hop(hops):
                if isinstance(mel, BistreamError):
                    raise mel
                mels.append(mel)
            self.vocoder.hop([VocoderHop(sessions[index].vocoder, mel, False) for index, mel in zip(part, mels, strict=True)])

    def _tokens(self, count: int, seed: int) -> list[int]:
        """Drawn before, so that drawing costs no time while hops are measured."""
        begin = seed * 101 % (len(self._drawn) - count)
        return self._drawn[begin : begin + count]

    def first_hop_ms(self, count: int, voices: Sequence[VoicePrompt], repeats: int) -> float:
        """Median time of the first hop of ``count`` sessions together, on known voices in turn."""
        for voice in voices:
            self.flow.warm(voice)
        times = []
        for repeat in range(repeats + 1):
            sessions = [self.open(voices[(repeat + index) % len(voices)], index) for index in range(count)]
            times.append(self._time_ms(lambda: self.hop(sessions, [FIRST_HOP_TOKENS] * count)))  # noqa: B023  (called at once)
            for session in sessions:
                session.close()
        return statistics.median(times[1:])

    def steady_hop_ms(self, count: int) -> float:
        """Median time of a hop of a chunk of ``count`` sessions together; of the three around ``CONTEXT_S``."""
        prompts = [self.prompt(PROMPT_S, seed) for seed in range(8)]
        sessions = [self.open(prompts[index % len(prompts)], index) for index in range(count)]
        times = []
        for hop in (-1, 0, 1):
            self._advance(sessions, (round(CONTEXT_S) + hop) * AUDIO_FORMAT.chunk_tokens)
            times.append(self._time_ms(lambda: self.hop(sessions, [AUDIO_FORMAT.chunk_tokens] * count)))
        for session in sessions:
            session.close()
        return statistics.median(times)

    def _advance(self, sessions: Sequence[Session], context_tokens: int) -> None:
        """Speak until ``context_tokens`` (a multiple of the chunk) are stored, prompt included, and none beyond them is spoken."""
        while max(missing := [context_tokens + AUDIO_FORMAT.lookahead_tokens - len(session.flow.tokens) for session in sessions]) > 0:
            self.hop(sessions, [min(4 * AUDIO_FORMAT.chunk_tokens, max(0, count)) for count in missing])
        assert all(session.flow.committed == context_tokens for session in sessions)

    def _time_ms(self, work: Callable[[], object]) -> float:
        """Wall time of work that ends with results on the host."""
        synchronize(self.device)
        began = time.perf_counter()
        work()
        synchronize(self.device)
        return (time.perf_counter() - began) * 1e3


def write_random_model(directory: str, sizes: CheckpointConfig, device: torch.device) -> None:
    drawer = Drawer(0, device.type)
    torch.save(flow_state(drawer, flow_shapes(sizes.flow)), Path(directory) / "flow.pt")
    torch.save(vocoder_state(drawer, vocoder_shapes(sizes.vocoder), sizes.vocoder), Path(directory) / "hift.pt")


def sessions_that_fit(counts: Sequence[int], pages: int, reserved: int) -> list[int]:
    """``counts``, the largest ones replaced by what fits in ``pages`` of a second each, ``reserved`` or more of them for a session."""
    voices_s = VOICES * (VOICES_S[1] + 1)
    largest = max(1, int(pages - voices_s) // max(reserved, round(CONTEXT_S - PROMPT_S) + 2))  # 2: the hops around the context
    return sorted({min(count, largest) for count in counts})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FAMILY_SIZES), default=COSYVOICE2.name)
    parser.add_argument("--size", choices=sorted(SESSIONS), default="full")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the flow: auto, float16, bfloat16 or float32")
    parser.add_argument("--kernels", default="auto", choices=["auto", "graphs", "plain"], help="which tier computes")
    parser.add_argument("--sessions", type=int, nargs="+", help="computed together (default 1 8 64 256, tiny 1 4)")
    parser.add_argument("--repeats", type=int, default=7, help="of the first hops (default %(default)s)")
    parser.add_argument("--out", help="file for the result")
    options = parser.parse_args()
    name = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    device, sizes = torch.device(name), FAMILY_SIZES[options.family][options.size].checkpoint
    state_mb = min(256 if options.size == "tiny" else MOST_STATE_MB, int(STATE_SHARE * memory_bytes(device)[0]) >> 20)
    with tempfile.TemporaryDirectory(prefix="bistream-benchmark-") as directory:
        write_random_model(directory, sizes, device)
        chosen = {"dtype": options.dtype, "kernels": options.kernels, "flow_state_mb": state_mb}
        rig = Rig(sizes, RuntimeConfig(model_dir=directory, device=name, max_sessions=512, **chosen))
    counts = sessions_that_fit(options.sessions or SESSIONS[options.size], rig.flow.pool.total, rig.flow.reserve_chunks)
    lengths = np.random.default_rng(2).uniform(*VOICES_S, VOICES)
    voices = [rig.prompt(float(length), seed) for seed, length in enumerate(lengths)]
    first = {str(count): round(rig.first_hop_ms(count, voices, options.repeats), 2) for count in counts}
    steady = {str(count): round(rig.steady_hop_ms(count), 2) for count in counts}
    table([("sessions", "first hop ms", "steady hop ms"), *((count, first[count], steady[count]) for count in first)])
    metrics = {
        "startup_s": round(rig.startup_s, 1),
        "state_mb_per_audio_s": round(rig.flow.page_bytes / 1e6, 2),
        "first_hop_ms": first,
        "steady_hop_ms": steady,
    }
    config = {"family": options.family, "size": options.size, "kernels": options.kernels, "flow_state_mb": state_mb}
    report("token2wav", config | {"dtype": str(rig.flow.dtype).removeprefix("torch.")}, metrics, options.out)


if __name__ == "__main__":
    main()

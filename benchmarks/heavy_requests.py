"""How long a live session's hops take while token2wav, or the CPU beside it, does something heavy.

    python benchmarks/heavy_requests.py --model-dir DIR [--tokens 2000] [--recordings DIR] [--threads 1] [--device auto] [--out FILE]

One session sends a hop of 25 tokens every half second to ``Token2Wav``, in this process: alone, beside a whole utterance of ``--tokens``
at speed 0.5, and beside the first hops of four sessions with new recordings of 30 s. With ``--recordings`` (a model directory, of full
size) also beside another process that analyses four recordings of 30 s, at the usual and at lower priorities. Prints the hops'
latencies; the last line is one JSON object. For a tiny checkpoint and a CPU: at full size a CPU is slower than real time anyway.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import report, table
from bistream.checkpoint import read_config
from bistream.config import RuntimeConfig
from bistream.device import resolve_device
from bistream.token2wav.service import Token2Wav, Token2WavHop
from bistream.types import VoicePrompt

HOP_TOKENS, HOP_EVERY_S = tuple(range(25)), 0.5
RECORDING_TOKENS, RECORDINGS = 750, 4  # 30 s each
ALONE_S = 6.0
PRIORITIES = ((0, 0), (5, 0), (10, 0), (0, 1))  # niceness, onnxruntime threads (0: its default)


class Rig:
    def __init__(self, options: argparse.Namespace) -> None:
        flow = read_config(options.model_dir).flow
        self._sizes = flow.vocab_size, flow.output_size, flow.spk_embed_dim
        self._sessions = 0
        config = RuntimeConfig(
            model_dir=str(options.model_dir),
            device=options.device,
            max_sessions=16,
            flow_state_mb=512,
            drain_timeout_s=0.0,
            max_offline_tokens=7000,
        )
        self.service = Token2Wav(config)

    def voice(self, tokens: int, seed: int) -> VoicePrompt:
        vocabulary, bins, width = self._sizes
        rng = np.random.default_rng(seed)
        mel = rng.standard_normal((2 * tokens, bins)).astype(np.float32) - 3
        return VoicePrompt("", rng.integers(0, vocabulary, tokens).astype(np.int32), mel, np.ones(width, np.float32))

    def live_session(self, is_over: Callable[[], bool]) -> dict[str, float]:
        """Hops, the first included, until ``is_over``: their latencies in milliseconds."""
        self._sessions += 1
        name, latencies, prompt = f"live {self._sessions}", list[float](), self.voice(50, 0)
        while not (latencies and is_over()):
            began_s = time.perf_counter()
            is_first = len(latencies) % 200 == 0  # a session is at most 300 s long
            if is_first:
                self.service.cancel(name)
            tokens, voice = (HOP_TOKENS[:18], prompt) if is_first else (HOP_TOKENS, None)
            self.service.hop(Token2WavHop(name, tokens, False, voice, playback_buffer_s=0.0 if is_first else HOP_EVERY_S)).result()
            latencies.append(1000 * (time.perf_counter() - began_s))
            time.sleep(max(0.0, HOP_EVERY_S - latencies[-1] / 1000))
        self.service.cancel(name)
        found = np.array(latencies)
        return {"hops": len(found), "p50": float(np.median(found)), "p90": float(np.quantile(found, 0.9)), "worst": float(found.max())}

    def beside_an_utterance(self, tokens: int) -> dict[str, float]:
        began_s = time.perf_counter()
        whole = self.service.synthesize([1] * tokens, self.voice(50, 1), speed=0.5)
        found = self.live_session(whole.done)
        return {**found, "heavy_s": time.perf_counter() - began_s}

    def beside_new_voices(self) -> dict[str, float]:
        began_s = time.perf_counter()
        hops = [Token2WavHop(f"new {k}", HOP_TOKENS[:18], False, self.voice(RECORDING_TOKENS, k + 2)) for k in range(RECORDINGS)]
        first = [self.service.hop(hop) for hop in hops]
        found = self.live_session(lambda: all(future.done() for future in first))
        return {**found, "heavy_s": time.perf_counter() - began_s}

    def beside_analyses(self, model_dir: Path, niceness: int, threads: int) -> dict[str, float]:
        command = [sys.executable, __file__, "--analyse", str(model_dir), str(niceness), str(threads)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()  # loaded
            began_s = time.perf_counter()
            process.stdin.close()
            found = self.live_session(lambda: process.poll() is not None)
        return {**found, "heavy_s": time.perf_counter() - began_s}


def analyse(model_dir: str, niceness: str, threads: str) -> None:
    """The other process: four recordings through both networks."""
    from bistream.config import RuntimeConfig  # noqa: PLC0415
    from bistream.triton import startup  # noqa: PLC0415
    from bistream.voice.speaker_encoder import SpeakerEncoder  # noqa: PLC0415
    from bistream.voice.speech_tokenizer import SpeechTokenizer  # noqa: PLC0415

    if int(niceness):
        startup.NICENESS = int(niceness)
        startup.yield_cores()
    config = RuntimeConfig(model_dir=model_dir, device="cpu", num_threads=int(threads))
    tokenizer, encoder = SpeechTokenizer.from_config(config), SpeakerEncoder.from_config(config)
    print("loaded", flush=True)
    sys.stdin.read()
    for seed in range(RECORDINGS):
        recording = 0.1 * np.random.default_rng(seed).standard_normal(30 * 16000).astype(np.float32)
        tokenizer.tokens(recording)
        encoder.embedding(recording)


def main() -> int:
    if sys.argv[1:2] == ["--analyse"]:
        analyse(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, required=True, help="checkpoint of token2wav (scripts/make_checkpoint.py)")
    parser.add_argument("--tokens", type=int, default=2000, help="of the utterance (default: %(default)s)")
    parser.add_argument("--recordings", type=Path, metavar="DIR", help="model directory of the two ONNX files")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto | cpu | cuda | cuda:N (default: %(default)s)")
    parser.add_argument("--out", help="also write the JSON object here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rig, results = Rig(options), dict[str, Any]()
    end_s = time.perf_counter() + ALONE_S
    results["alone"] = rig.live_session(lambda: time.perf_counter() > end_s)
    results[f"utterance of {options.tokens} tokens"] = rig.beside_an_utterance(options.tokens)
    results["four new voices of 30 s"] = rig.beside_new_voices()
    for niceness, threads in PRIORITIES if options.recordings else ():
        results[f"analyses, niceness {niceness}, threads {threads}"] = rig.beside_analyses(options.recordings, niceness, threads)
    rig.service.close()
    print_results(results, options)
    return 0


def print_results(results: dict[str, Any], options: argparse.Namespace) -> None:
    columns = ("hops", "p50", "p90", "worst", "heavy_s")
    rows = [[name, *(f"{values[column]:.0f}" if column in values else "" for column in columns)] for name, values in results.items()]
    table([("beside", "hops", "p50 ms", "p90 ms", "worst ms", "heavy work s"), *rows])
    config = {"tokens": options.tokens, "threads": options.threads, "analyses": options.recordings is not None}
    report("heavy-requests", resolve_device(options.device), config, results, options.out)


if __name__ == "__main__":
    sys.exit(main())

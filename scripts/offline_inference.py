"""Speak texts offline, in this process and without a server: every utterance as a whole, several at a time.

Examples, all of them with Fun-CosyVoice3-0.5B-2512 as well, and but for the instruction with Spark-TTS-0.5B:
    offline_inference.py --model-dir CosyVoice2-0.5B --text "Hello." --reference-audio voice.wav --reference-text "What is said in it."
    offline_inference.py --model-dir CosyVoice2-0.5B --manifest meta.lst --output-dir out --concurrency 16
    offline_inference.py --model-dir CosyVoice2-0.5B --text "Hello." --reference-audio voice.wav --instruct-text "Speak happily."
    offline_inference.py --model-dir CosyVoice2-0.5B --source-audio speech.wav --reference-audio voice.wav

Texts are prepared as in upstream's library: numbers are spelled out (with --text-normalization dates, units and more, too), the text is
split into sentences of a length that suits the model, and each is spoken separately (--no-text-front-end passes the text unsplit, in one
piece, as the server does).
Writes one WAV per utterance and log.json with the stages' times and the real-time factor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from bistream.checkpoints.reader import read_config
from bistream.client.audio import WavWriter
from bistream.commands.waiting import Waiting
from bistream.contract.checks import MARKDOWN
from bistream.errors import BistreamError
from bistream.local import LocalPipeline
from bistream.text.effort import reads_numbers
from bistream.text.front_end import prepare_text
from bistream.text.normalization import load_read_out, normalize_text
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.factory import read_text_tokenizer
from bistream.types import FloatArray
from scripts._inference import Utterance, add_options, runtime_config, sampling, utterances, write_log


def speak(pipeline: LocalPipeline, utterance: Utterance, pieces: list[str], options: argparse.Namespace, output: Path) -> dict[str, Any]:
    """Write the WAV; returns the utterance's log entry. An error goes into the entry, so that the other utterances are spoken."""
    begin = time.perf_counter()
    try:
        spoken = _spoken(pipeline, utterance, pieces, options)
    except BistreamError as error:
        return {"name": utterance.name, "error": f"{error.code}: {error.sentence}"}
    wall_s = time.perf_counter() - begin
    with WavWriter(output / f"{utterance.name}.wav") as wav:
        wav.sample_rate = pipeline.sample_rate
        for waveform in spoken:
            wav.write(waveform)
    audio_s = sum(len(waveform) for waveform in spoken) / pipeline.sample_rate
    return {"name": utterance.name, "pieces": pieces, "audio_s": audio_s, "wall_s": wall_s, "error": None}


def _spoken(pipeline: LocalPipeline, utterance: Utterance, pieces: list[str], options: argparse.Namespace) -> list[FloatArray]:
    how = (utterance.voice, sampling(options), options.speed)
    if utterance.source_wav is not None:
        return [chunk.waveform for chunk in pipeline.convert(utterance.source_wav, *how, offline=True)]
    return [pipeline.synthesize(piece, *how) for piece in pieces]


def text_pieces(utterance: Utterance, options: argparse.Namespace, tokenizer: TextTokenizer) -> list[str]:
    """The pieces to speak, one after another."""
    if not options.text_front_end or utterance.source_wav is not None:
        return [utterance.text]
    mode, text = options.text_normalization, utterance.text
    if reads_numbers(mode):  # first, as upstream does: the rules that follow would take the dot of 1.5 for the end of a sentence
        text = normalize_text(text, mode.removesuffix(MARKDOWN), load_read_out())
    return prepare_text(text, lambda text: len(tokenizer.encode(text)), tokenizer.spoken_tokens) or [utterance.text]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Speak everything; returns the log. Raises ``BistreamError`` if nothing can be spoken at all."""
    todo = utterances(options)
    output = Path(options.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    tokenizer = read_text_tokenizer(options.model_dir, read_config(options.model_dir))
    with Waiting("the models are loaded"):
        pipeline = LocalPipeline(runtime_config(options, options.concurrency))
    with pipeline:
        loaded = time.perf_counter()
        with ThreadPoolExecutor(options.concurrency) as pool:
            spoken = pool.map(lambda one: speak(pipeline, one, text_pieces(one, options, tokenizer), options, output), todo)
            entries = list(tqdm(spoken, total=len(todo), unit="utterance", leave=False, delay=2, disable=None))
        wall_s = time.perf_counter() - loaded
        times = pipeline.times.seconds()
    audio_s = sum(entry.get("audio_s", 0.0) for entry in entries)
    log = {
        "arguments": vars(options),
        "load_s": loaded - begin,
        "voice_s": times["voice"],
        "language_model_s": times["language_model"],
        "token2wav_s": times["token2wav"],
        "wall_s": wall_s,
        "audio_s": audio_s,
        "real_time_factor": wall_s / audio_s if audio_s else None,
        "utterances": entries,
    }
    write_log(log, output)
    return log


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--concurrency", type=int, default=4, help="concurrent utterances (default: %(default)s)")
    parser.add_argument("--text-front-end", action=argparse.BooleanOptionalAction, default=True, help="prepare the text as upstream does")
    options = parser.parse_args(arguments)
    if options.concurrency < 1:
        parser.error("--concurrency must be 1 or more")
    try:
        log = run(options)
    except (BistreamError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for entry in log["utterances"]:
        print(f"{entry['name']}: {entry['error'] or '{:.2f} s of audio in {:.2f} s'.format(entry['audio_s'], entry['wall_s'])}")
    if log["real_time_factor"] is not None:
        stages = ", ".join(f"{stage} {log[f'{stage}_s']:.2f} s" for stage in ("voice", "language_model", "token2wav"))
        print(f"{log['audio_s']:.2f} s of audio in {log['wall_s']:.2f} s, real-time factor {log['real_time_factor']:.3f} ({stages})")
    return 1 if any(entry["error"] for entry in log["utterances"]) else 0


if __name__ == "__main__":
    sys.exit(main())

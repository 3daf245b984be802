"""Speak texts as they stream, in this process and without a server: text in pieces goes in while audio comes out.

Examples, all of them with Fun-CosyVoice3-0.5B-2512 as well and with Spark-TTS-0.5B:
    streaming_inference.py --model-dir CosyVoice2-0.5B --text "Hello." --reference-audio voice.wav --reference-text "What is said in it."
    streaming_inference.py --model-dir CosyVoice2-0.5B --manifest meta.lst --output-dir out --text-rate 20
    streaming_inference.py --model-dir CosyVoice2-0.5B --dataset yuekai/seed_tts_cosy2 --split wenetspeech4tts --strategy exponential

Writes one WAV per utterance and log.json with the time to the first audio, every chunk's time, and the real-time factor. With --strategy
only token2wav streams, in chunks of a fixed schedule as upstream's script of this name; the log then also has the score of every joint.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from bistream.client.audio import WavWriter
from bistream.client.report import ChunkRecord, SessionReport
from bistream.client.say import paced, split_pieces
from bistream.commands.waiting import Waiting
from bistream.errors import BistreamError
from bistream.local import LocalPipeline
from bistream.types import AudioChunk
from scripts._chunk_strategy import STRATEGIES, stream_all
from scripts._inference import Utterance, add_options, runtime_config, sampling, utterances, write_log
from scripts._stages import Stages


def text_pieces(text: str, text_rate: float | None) -> Iterator[str]:
    """The text in words, at ``text_rate`` words per second or as fast as they are consumed."""
    pieces = split_pieces(text)
    return iter(pieces) if text_rate is None else paced(pieces, text_rate)


def speak(pipeline: LocalPipeline, utterance: Utterance, options: argparse.Namespace, output: Path) -> SessionReport:
    """Write the WAV while the audio arrives; audio before an error stays in it and in the report."""
    report = SessionReport(session_id=utterance.name, chunks=[], sample_rate=pipeline.sample_rate)
    begin = time.monotonic()

    def pieces() -> Iterator[str]:
        yield from text_pieces(utterance.text, options.text_rate)
        report.text_ended_s = time.monotonic() - begin

    def chunks() -> Iterator[AudioChunk]:
        if utterance.source_wav is not None:
            return pipeline.convert(utterance.source_wav, utterance.voice, sampling(options), options.speed)
        return pipeline.stream(pieces(), utterance.voice, sampling(options), options.whole_text, options.speed)

    try:
        with WavWriter(output / f"{utterance.name}.wav") as wav:
            wav.sample_rate = pipeline.sample_rate
            for chunk in chunks():
                arrived_s = time.monotonic() - begin
                wav.write(chunk.waveform)
                report.chunks.append(ChunkRecord(arrived_s, len(chunk.waveform) / pipeline.sample_rate, chunk.text_consumed))
    except BistreamError as error:
        report.error = f"{error.code}: {error.sentence}"
    report.wall_s = time.monotonic() - begin
    return report


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Speak everything, one utterance after another; returns the log. Raises ``BistreamError`` if nothing can be spoken at all."""
    todo = utterances(options)
    output = Path(options.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    reports = []
    with Waiting("the models are loaded"):
        pipeline = LocalPipeline(runtime_config(options, max_sessions=2))
    with pipeline:
        for utterance in tqdm(todo, unit="utterance", leave=False, delay=2, disable=None):
            report = speak(pipeline, utterance, options, output)
            tqdm.write(f"{utterance.name}: {report.error or report.as_text()}")
            for chunk in report.chunks:
                tqdm.write(f"  {chunk.arrived_s:8.3f} s  {chunk.audio_s:6.3f} s of audio  {chunk.text_consumed} characters spoken")
            reports.append(report)
        times = pipeline.times.seconds()
    log = {
        "arguments": vars(options),
        "stage_s": times,
        "audio_s": sum(report.audio_s for report in reports),
        "wall_s": sum(report.wall_s for report in reports),
        "utterances": [report.as_dict() for report in reports],
    }
    write_log(log, output)
    return log


def run_strategy(options: argparse.Namespace) -> dict[str, Any]:
    """``run`` with chunks of a fixed schedule."""
    todo = utterances(options)
    output = Path(options.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    needs_tokens = any(not utterance.speech_tokens for utterance in todo)
    with Waiting("the models are loaded"):
        stages = Stages(runtime_config(options, max_sessions=1), with_language_model=needs_tokens)
    with closing(stages):
        log = stream_all(stages, todo, options.strategy, sampling(options), output, tell)
    write_log({"arguments": vars(options), **log}, output)
    if log["real_time_factor"] is not None:
        times = f"{log['first_pass_s']:.2f} s, then {log['second_pass_s']:.2f} s with voices that the flow knows"
        print(f"{log['audio_s']:.2f} s of audio in {log['chunks']} chunks: {times}, real-time factor {log['real_time_factor']:.3f}")
    return log


def tell(entry: dict[str, Any]) -> None:
    """As soon as the utterance is spoken: where there is no terminal, a data set would else be silent for minutes."""
    tqdm.write(f"{entry['name']}: {entry['error'] or summary(entry)}")


def summary(entry: dict[str, Any]) -> str:
    """A line about an utterance of ``run_strategy``."""
    first, seams = entry["first_chunk_s"], entry["seams"]
    return (
        f"{entry['audio_s']:.2f} s of audio in {len(entry['chunks'])} chunks, the first after {first['first_pass']:.3f} s, then "
        f"{first['second_pass']:.3f} s with a known voice; worst joint: click {seams['worst_click_db']:.2f} dB, "
        f"level step {seams['worst_level_step_db']:.2f} dB"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--text-rate", type=float, metavar="N", help="feed N words per second (default: as fast as they are consumed)")
    parser.add_argument("--whole-text", action="store_true", help="send the text as one request: the one-shot layout, no bi-streaming")
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        help="stream token2wav alone, in chunks of a second (25 tokens, of Spark-TTS 50) or of one, two, four, ...",
    )
    options = parser.parse_args(arguments)
    if options.source_audio is not None and (options.text_rate is not None or options.whole_text or options.strategy is not None):
        parser.error("--source-audio excludes --text-rate, --whole-text and --strategy")
    if options.text_rate is not None and (options.text_rate <= 0 or options.whole_text):
        parser.error("--text-rate must be above 0 and excludes --whole-text")
    if options.strategy is not None and (options.text_rate is not None or options.whole_text):
        parser.error("--strategy excludes --text-rate and --whole-text: the speech tokens are made beforehand")
    if options.strategy is not None and options.speed != 1.0:
        parser.error("--strategy measures at the usual speed; leave --speed out")
    try:
        log = run(options) if options.strategy is None else run_strategy(options)
    except (BistreamError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if any(report["error"] for report in log["utterances"]) else 0


if __name__ == "__main__":
    sys.exit(main())

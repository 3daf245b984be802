"""Speak texts as they stream, in this process and without a server: text in pieces goes in while audio comes out.

Examples:
    streaming_inference.py --model-dir CosyVoice2-0.5B --text "Hello." --prompt-audio voice.wav --prompt-text "What is said in it."
    streaming_inference.py --model-dir CosyVoice2-0.5B --manifest meta.lst --output-dir out --text-rate 20

Writes one WAV per utterance and log.json with the time to the first audio, every chunk's time, and the real-time factor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.errors import BistreamError
from bistream.local import LocalPipeline
from bistream.rates import SAMPLE_RATE
from client.audio import WavWriter
from client.client_grpc import paced, split_pieces
from client.report import ChunkRecord, SessionReport
from scripts._inference import Utterance, add_options, runtime_config, sampling, utterances, write_log


def text_pieces(text: str, text_rate: float | None) -> Iterator[str]:
    """The text in words, at ``text_rate`` words per second or as fast as they are consumed."""
    pieces = split_pieces(text)
    return iter(pieces) if text_rate is None else paced(pieces, text_rate)


def speak(pipeline: LocalPipeline, utterance: Utterance, options: argparse.Namespace, output: Path) -> SessionReport:
    """Write the WAV while the audio arrives; audio before an error stays in it and in the report."""
    report = SessionReport(session_id=utterance.name, chunks=[])
    begin = time.monotonic()

    def pieces() -> Iterator[str]:
        yield from text_pieces(utterance.text, options.text_rate)
        report.text_ended_s = time.monotonic() - begin

    try:
        with WavWriter(output / f"{utterance.name}.wav") as wav:
            for chunk in pipeline.stream(pieces(), utterance.voice, sampling(options), is_whole=options.whole_text):
                arrived_s = time.monotonic() - begin
                wav.write(chunk.waveform)
                report.chunks.append(ChunkRecord(arrived_s, len(chunk.waveform) / SAMPLE_RATE, chunk.text_consumed))
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
    with LocalPipeline(runtime_config(options, max_sessions=2)) as pipeline:
        for utterance in todo:
            report = speak(pipeline, utterance, options, output)
            print(f"{utterance.name}: {report.error or report.as_text()}")
            for chunk in report.chunks:
                print(f"  {chunk.arrived_s:8.3f} s  {chunk.audio_s:6.3f} s of audio  {chunk.text_consumed} characters spoken")
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--text-rate", type=float, metavar="N", help="feed N words per second (default: as fast as they are consumed)")
    parser.add_argument("--whole-text", action="store_true", help="send the text as one request: the one-shot layout, no bi-streaming")
    options = parser.parse_args(arguments)
    if options.text_rate is not None and (options.text_rate <= 0 or options.whole_text):
        parser.error("--text-rate must be above 0 and excludes --whole-text")
    try:
        log = run(options)
    except (BistreamError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if any(report["error"] for report in log["utterances"]) else 0


if __name__ == "__main__":
    sys.exit(main())

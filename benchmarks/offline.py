"""Offline benchmark in this process, without the server: stage 6 of run.sh, and the counterpart of upstream's ``offline_inference.py``.

    python benchmarks/offline.py --model-dir CosyVoice2-0.5B --dataset yuekai/seed_tts --split wenetspeech4tts --batch-size 1 4 16 --out OUT

For each batch size: the rows of the data set in batches, each through the voices, then the language model, then token2wav; a stage begins
when the one before it has ended, so that its time is its own. token2wav takes the batch in parts of --token2wav-batch-size, with the
attention of streaming; --attention full computes each utterance as ``cosyvoice2`` does offline, one after another.

The folder --out gets ``result.json``, and for each batch size ``batch-N/`` with WAV files and upstream's ``log.txt``, where asked for.
Needs the server's requirements and requirements/benchmarks.txt.
Exit code: 0, 1 when a row failed, 2 wrong usage or checkpoint, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from benchmarks._common import describe, table
from bistream.client.audio import WavWriter
from bistream.client.exit_codes import EXIT_INTERRUPTED, EXIT_OK, EXIT_SERVER, EXIT_USAGE, fail
from bistream.commands.waiting import Waiting
from bistream.errors import BistreamError
from bistream.evaluation.dataset import Row, read_rows
from bistream.token2wav.renderer import Outcome
from scripts._inference import add_model_options, recording, runtime_config, sampling
from scripts._stages import Speech, Stages

Record = dict[str, Any]  # of a batch: seconds by stage, and "rows"
TIMES = ("read_s", "voice_s", "language_model_s", "token2wav_s", "save_s")
# The keys of upstream's log.txt that are measured here too. Our voice_s has the speaker embedding and the mel as well.
UPSTREAM_NAMES = {
    "read_s": "data_load_time_seconds",
    "voice_s": "speech_tokenization_time_in_collator_seconds",
    "language_model_s": "llm_time_seconds",
    "token2wav_s": "token2wav_time_seconds",
    "save_s": "audio_save_time_seconds",
    "audio_s": "total_audio_duration_seconds",
    "wall_s": "pipeline_time_seconds",
}


class Clock:
    """Seconds of consecutive stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def stage(self, name: str) -> None:
        """Ends a stage that began with the last call."""
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def batches(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]


def speak(stages: Stages, rows: Sequence[Row], options: argparse.Namespace, token2wav_batch: int, wavs: Path | None) -> Record:
    """The record of one batch: times, and the outcome of each row; an error of one row leaves the others as they are."""
    outcomes: dict[str, Outcome] = {}
    clock, spec = Clock(), sampling(options)

    def without_errors(values: dict[str, Any]) -> dict[str, Any]:
        outcomes.update({name: value for name, value in values.items() if isinstance(value, BistreamError)})
        return {name: value for name, value in values.items() if name not in outcomes}

    choices = without_errors({row.id: _caught(recording, row.prompt_audio, row.prompt_text) for row in rows})
    clock.stage("read_s")
    voices = without_errors({name: _caught(stages.voice, choice) for name, choice in choices.items()})
    clock.stage("voice_s")
    texts = [(row.target_text, voices[row.id]) for row in rows if row.id in voices]
    found = stages.speech_tokens(texts, spec) if texts else []
    tokens = without_errors(dict(zip(voices, found, strict=True)))
    clock.stage("language_model_s")
    speeches = {name: Speech(each, voices[name]) for name, each in tokens.items()}
    if options.attention == "full":
        outcomes.update({name: stages.render_whole(speech, spec.seed) for name, speech in speeches.items()})
    else:
        for names in batches(list(speeches), token2wav_batch):
            outcomes.update(zip(names, stages.render([speeches[name] for name in names], spec.seed), strict=True))
    clock.stage("token2wav_s")
    entries = [_entry(row.id, outcomes[row.id], len(tokens.get(row.id, ())), stages.audio_format.sample_rate) for row in rows]
    for row in rows:
        waveform = outcomes[row.id]
        if wavs is not None and not isinstance(waveform, BistreamError):
            with WavWriter(wavs / f"{row.id}.wav") as wav:
                wav.sample_rate = stages.audio_format.sample_rate
                wav.write(waveform)
    clock.stage("save_s")
    return {"rows": entries, **clock.seconds}


def _caught(function: Any, *arguments: Any) -> Any:
    """The result or the ``BistreamError``."""
    try:
        return function(*arguments)
    except BistreamError as error:
        return error


def _entry(name: str, outcome: Outcome, tokens: int, sample_rate: int) -> dict[str, Any]:
    if isinstance(outcome, BistreamError):
        return {"id": name, "error": f"{outcome.code}: {outcome.sentence}", "tokens": tokens, "audio_s": 0.0}
    return {"id": name, "error": None, "tokens": tokens, "audio_s": len(outcome) / sample_rate}


def measure(stages: Stages, rows: Sequence[Row], size: int, options: argparse.Namespace) -> list[Record]:
    """All rows in batches of this size."""
    token2wav_batch, folder = options.token2wav_batch_size or size, options.out / f"batch-{size}"
    if options.wavs or options.upstream_files:
        folder.mkdir(parents=True, exist_ok=True)
    for _ in range(options.warm_up):
        speak(stages, rows[:size], options, token2wav_batch, None)
    records = []
    quiet = True if options.quiet else None  # None: on a terminal only
    with tqdm(total=len(rows), desc=f"batches of {size}", unit="row", disable=quiet) as progress:
        for batch in batches(rows, size):
            records.append(speak(stages, batch, options, token2wav_batch, folder if options.wavs else None))
            progress.update(len(batch))
    if options.upstream_files:
        found = summarise(records, size)
        log = {"args": _plain(options), **{name: found[key] for key, name in UPSTREAM_NAMES.items()}}
        (folder / "log.txt").write_text(json.dumps(log, indent=4), encoding="utf-8")
    return records


def summarise(records: Sequence[Record], size: int) -> dict[str, Any]:
    """Sums over the batches of one size."""
    entries = [entry for record in records for entry in record["rows"]]
    times = {name: sum(record[name] for record in records) for name in TIMES}
    audio_s, wall_s = sum(entry["audio_s"] for entry in entries), sum(times.values())
    tokens = sum(entry["tokens"] for entry in entries)
    return {
        "batch_size": size,
        "rows": len(entries),
        "failed": sum(entry["error"] is not None for entry in entries),
        **{name: round(value, 4) for name, value in times.items()},
        "wall_s": round(wall_s, 4),
        "audio_s": round(audio_s, 3),
        "real_time_factor": round(wall_s / audio_s, 5) if audio_s else None,
        "speech_tokens_per_s": round(tokens / times["language_model_s"], 1) if times["language_model_s"] else None,
    }


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--dataset", required=True, metavar="SET", help="Parquet, JSONL, manifest, folder, or name on the hub")
    parser.add_argument("--split", help="of the data set, where it has several, e.g. wenetspeech4tts")
    parser.add_argument("--max-rows", type=int, metavar="N", help="speak the first N rows only")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1], metavar="N", help="rows computed together, one run for each N")
    parser.add_argument("--token2wav-batch-size", type=int, metavar="N", help="of token2wav (default: the batch size)")
    parser.add_argument("--attention", choices=("streaming", "full"), default="streaming", help="of token2wav (default %(default)s)")
    parser.add_argument("--warm-up", type=int, default=1, metavar="N", help="batches before each run (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the results go")
    parser.add_argument("--wavs", action="store_true", help="write the audio")
    parser.add_argument("--upstream-files", action="store_true", help="write log.txt as upstream's script")
    parser.add_argument("--quiet", action="store_true", help="show no progress on a terminal")
    options = parser.parse_args(arguments)
    if min(*options.batch_size, options.token2wav_batch_size or 1, options.max_rows or 1, 1 + options.warm_up) < 1:
        parser.error("--batch-size, --token2wav-batch-size and --max-rows must be 1 or more, --warm-up 0 or more")
    return options


def benchmark(options: argparse.Namespace) -> int:
    """Raises ``BistreamError`` and ``OSError`` with a sentence."""
    runs: list[dict[str, Any]] = []
    errors: set[str] = set()
    with TemporaryDirectory() as recordings:
        rows = read_rows(options.dataset, options.split, Path(recordings), options.max_rows)
        left_out = {"batch_size", "out", "wavs", "upstream_files", "quiet", "warm_up"}
        config = {**{name: value for name, value in _plain(options).items() if name not in left_out}, "rows": len(rows)}
        options.out.mkdir(parents=True, exist_ok=True)
        with Waiting("the models are loaded"):
            stages = Stages(runtime_config(options, max_sessions=max(options.batch_size)))
        with closing(stages):
            for size in options.batch_size:
                records = measure(stages, rows, size, options)
                runs.append(summarise(records, size))
                errors |= {entry["error"] for record in records for entry in record["rows"] if entry["error"] is not None}
                result = describe("offline", config, {"runs": runs})  # after each run: a later one may be interrupted
                (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    names = ("batch_size", "rows", "failed", "voice_s", "language_model_s", "token2wav_s", "wall_s", "audio_s", "real_time_factor")
    table([names, *([run[name] for name in names] for run in runs)])
    for sentence in sorted(errors):
        print(f"error: {sentence}", file=sys.stderr)
    return EXIT_SERVER if errors else EXIT_OK


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        return benchmark(options)
    except (BistreamError, OSError) as error:
        return fail(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return fail(f"interrupted; {options.out} has the runs that were complete", EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())

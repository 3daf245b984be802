"""Shared by the two inference scripts: options, texts and voices, and the log file."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bistream.checkpoints.files import family_of
from bistream.client.audio import read_reference
from bistream.client.voice_options import GENERATION_OPTIONS, add_flags
from bistream.client.voice_options import add_options as add_fields
from bistream.config import RuntimeConfig
from bistream.contract.checks import MAX_SPEED, MIN_SPEED, SERVER_TEXT_NORMALIZATIONS
from bistream.errors import InvalidInputError
from bistream.evaluation.dataset import Row, read_lines, read_manifest, read_rows
from bistream.local import VoiceChoice
from bistream.types import FloatArray, GenerationOptions


@dataclass(frozen=True)
class Utterance:
    name: str  # of the WAV file
    text: str
    voice: VoiceChoice
    speech_tokens: tuple[int, ...] = ()  # of the text, where the data set has them
    source_wav: FloatArray | None = None  # voice conversion: float32 [N], 16 kHz, instead of a text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the two scripts."""
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", help="one text to speak")
    text.add_argument("--text-file", metavar="FILE", help="texts to speak, one per line (UTF-8)")
    text.add_argument("--manifest", metavar="FILE", help="lines utt|prompt_text|prompt_wav|target_text; paths relative to the manifest")
    text.add_argument("--dataset", metavar="SET", help="Parquet, JSONL, folder or name on the hub (bistream/evaluation/dataset.py)")
    text.add_argument("--source-audio", metavar="FILE", help="voice conversion: a recording whose words are spoken in the voice")
    parser.add_argument("--split", help="of the data set, where it has several, e.g. wenetspeech4tts")
    parser.add_argument("--reference-text", help="transcript of the recording (with --text and --text-file); without it: cross-lingual")
    parser.add_argument("--reference-audio", metavar="FILE", help="a recording of the voice")
    parser.add_argument("--speaker-id", help="a registered voice, or a preset of spk2info.pt, instead of a recording")
    add_flags(parser, "is_cross_lingual")
    add_fields(parser, ("instruct_text",))
    parser.add_argument("--voices-dir", default="", metavar="DIR", help="where the registered voices are")
    parser.add_argument(
        "--text-normalization",
        choices=SERVER_TEXT_NORMALIZATIONS,
        default="off",
        help="read out numbers, dates and units (default: %(default)s)",
    )
    parser.add_argument("--speed", type=float, default=1.0, help=f"{MIN_SPEED:g} to {MAX_SPEED:g} (default: %(default)s)")
    parser.add_argument("--output-dir", default="output", metavar="DIR", help="where the WAV files and log.json go (default: %(default)s)")
    add_model_options(parser)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """What ``runtime_config`` and ``sampling`` read, the voices aside."""
    parser.add_argument(
        "--model-dir",
        required=True,
        metavar="DIR",
        help="CosyVoice2-0.5B, Fun-CosyVoice3-0.5B-2512, Spark-TTS-0.5B, or one made by scripts/make_checkpoint.py",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: %(default)s)")
    parser.add_argument("--num-threads", type=int, default=0, help="CPU threads; 0 is the library's default")
    parser.add_argument(
        "--flow-state-mb", type=int, default=0, metavar="N", help="memory for the flow's state; 0: 300 s of audio or more, if it fits"
    )
    add_fields(parser, ("seed", "temperature", "top_k", "top_p"))


def runtime_config(options: argparse.Namespace, max_sessions: int) -> RuntimeConfig:
    return RuntimeConfig(
        model_dir=options.model_dir,
        device=options.device,
        dtype=options.dtype,
        num_threads=options.num_threads,
        flow_state_mb=options.flow_state_mb,
        voices_dir=getattr(options, "voices_dir", ""),
        text_normalization=getattr(options, "text_normalization", "off"),
        max_sessions=max_sessions,
    )


def sampling(options: argparse.Namespace) -> GenerationOptions:
    given = {name: getattr(options, name, None) for name in GENERATION_OPTIONS if name != "text_normalization"}
    return GenerationOptions(**{name: value for name, value in given.items() if value is not None})


def utterances(options: argparse.Namespace) -> list[Utterance]:
    """Raises ``InvalidInputError`` naming the line or file that is wrong."""
    if options.manifest is not None:
        return [_utterance(row, options) for row in read_manifest(Path(options.manifest))]
    if options.dataset is not None:
        with TemporaryDirectory() as recordings:
            return [_utterance(row, options) for row in read_rows(options.dataset, options.split, Path(recordings))]
    voice = replace(_voice(options), is_cross_lingual=options.is_cross_lingual)
    if options.source_audio is not None:
        if options.instruct_text is not None:
            raise InvalidInputError("--source-audio brings how its words are spoken; leave --instruct-text out.")
        return [Utterance(Path(options.source_audio).stem, "", voice, source_wav=_samples(Path(options.source_audio)))]
    if options.text is not None:
        return [Utterance("utterance", options.text, voice)]
    lines = [line.strip() for line in read_lines(Path(options.text_file))]
    return [Utterance(f"{number:04d}", line, voice) for number, line in enumerate(lines, 1) if line]


def _utterance(row: Row, options: argparse.Namespace) -> Utterance:
    """With its recording, which is read here. The tokens of data sets are those of flows, which mean nothing to a codec."""
    voice = VoiceChoice(_samples(row.prompt_audio), row.prompt_text, is_cross_lingual=options.is_cross_lingual)
    return Utterance(row.id, row.target_text, voice, () if family_of(options.model_dir).has_codec else row.target_tokens)


def _voice(options: argparse.Namespace) -> VoiceChoice:
    if options.speaker_id is not None:
        return VoiceChoice(speaker_id=options.speaker_id)
    if options.reference_audio is None:
        raise InvalidInputError("The voice is missing; give --reference-audio with --reference-text, or --speaker-id.")
    return recording(Path(options.reference_audio), options.reference_text)


def recording(path: Path, transcript: str | None) -> VoiceChoice:
    return VoiceChoice(_samples(path), transcript)


def _samples(path: Path) -> FloatArray:
    try:
        return read_reference(path)
    except ValueError as error:
        raise InvalidInputError(str(error)) from None


def write_log(log: dict[str, Any], output: Path) -> None:
    (output / "log.json").write_text(json.dumps(log, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

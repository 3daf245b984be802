"""Shared by the two inference scripts: options, texts and voices, and the log file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError
from bistream.local import VoiceChoice
from bistream.types import Sampling
from client.audio import read_reference


@dataclass(frozen=True)
class Utterance:
    name: str  # of the WAV file
    text: str
    voice: VoiceChoice


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model-dir", required=True, metavar="DIR", help="CosyVoice2-0.5B, or a result of scripts/make_checkpoint.py")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", help="one text to speak")
    text.add_argument("--text-file", metavar="FILE", help="texts to speak, one per line (UTF-8)")
    text.add_argument("--manifest", metavar="FILE", help="lines utt|prompt_text|prompt_wav|target_text; paths relative to the manifest")
    parser.add_argument("--prompt-text", help="transcript of the recording (with --text and --text-file)")
    parser.add_argument("--prompt-audio", metavar="FILE", help="a recording of the voice")
    parser.add_argument("--speaker-id", help="a registered voice instead of a recording")
    parser.add_argument("--voices-dir", default="", metavar="DIR", help="where the registered voices are")
    parser.add_argument("--output-dir", default="output", metavar="DIR", help="where the WAV files and log.json go (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: %(default)s)")
    parser.add_argument("--num-threads", type=int, default=0, help="CPU threads; 0 is the library's default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)


def runtime_config(options: argparse.Namespace, max_sessions: int) -> RuntimeConfig:
    return RuntimeConfig(
        model_dir=options.model_dir,
        device=options.device,
        dtype=options.dtype,
        num_threads=options.num_threads,
        voices_dir=options.voices_dir,
        max_sessions=max_sessions,
    )


def sampling(options: argparse.Namespace) -> Sampling:
    return Sampling(seed=options.seed, temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)


def utterances(options: argparse.Namespace) -> list[Utterance]:
    """Raises ``InvalidInputError`` naming the line or file that is wrong."""
    if options.manifest is not None:
        return read_manifest(Path(options.manifest))
    voice = _voice(options)
    if options.text is not None:
        return [Utterance("utterance", options.text, voice)]
    lines = [line.strip() for line in _read_lines(Path(options.text_file))]
    return [Utterance(f"{number:04d}", line, voice) for number, line in enumerate(lines, 1) if line]


def read_manifest(path: Path) -> list[Utterance]:
    """Lines ``utt|prompt_text|prompt_wav|target_text``, as in upstream; empty lines are skipped. Recordings are read here."""
    found: dict[str, Utterance] = {}
    for number, line in enumerate(_read_lines(path), 1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or not all(fields):
            raise InvalidInputError(f"Line {number} of {path} is not utt|prompt_text|prompt_wav|target_text; correct it.")
        name, prompt_text, prompt_wav, text = fields
        if name in found or Path(name).name != name:
            raise InvalidInputError(f"Line {number} of {path} has the name {name!r}, which is taken or not a file name; choose another.")
        found[name] = Utterance(name, text, _recording(path.parent / prompt_wav, prompt_text))
    return list(found.values())


def _voice(options: argparse.Namespace) -> VoiceChoice:
    if options.speaker_id is not None:
        return VoiceChoice(speaker_id=options.speaker_id)
    if options.prompt_audio is None or options.prompt_text is None:
        raise InvalidInputError("The voice is missing; give --prompt-audio with --prompt-text, or --speaker-id with --voices-dir.")
    return _recording(Path(options.prompt_audio), options.prompt_text)


def _recording(path: Path, transcript: str) -> VoiceChoice:
    try:
        return VoiceChoice(read_reference(path), transcript)
    except ValueError as error:
        raise InvalidInputError(str(error)) from None


def _read_lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} could not be read as UTF-8 text ({error}); name another file.") from None


def write_log(log: dict[str, Any], output: Path) -> None:
    (output / "log.json").write_text(json.dumps(log, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

"""Options of the client's commands that say in which voice and manner to speak: inputs of a start by their names in the wire contract."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bistream.contract.field import Field
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError, InvalidInputError
from bistream.types import GenerationOptions

GENERATION_OPTIONS = tuple(one.name for one in dataclasses.fields(GenerationOptions))
LABELS = ("gender", "pitch", "speaking_rate")  # of a voice that is to be made
_FLAGS = {
    "is_cross_lingual": "leave the voice's transcript aside: the text is in another language",
    "is_marked": "have the watermark laid over the audio, by a server that marks on request",
}
_TYPES = {"INT32": int, "INT64": int, "FP32": float, "BYTES": str}


def add_options(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """names: of inputs."""
    for name in names:
        field = COSYVOICE2_BISTREAM.by_name[name]
        parser.add_argument(f"--{name.replace('_', '-')}", type=_TYPES[field.datatype], help=field.doc.removeprefix("with the start: "))


def add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """names: of inputs that are true or false."""
    for name in names:
        parser.add_argument(f"--{name.removeprefix('is_').replace('_', '-')}", dest=name, action="store_true", help=_FLAGS[name])


def given_inputs(fields: Mapping[str, Field], options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Those of the names that are options, and say anything."""
    values = {name: getattr(options, name, None) for name in names if name in fields}
    return {name: value for name, value in values.items() if fields[name].says(value)}


def refusal(error: BistreamError) -> str:
    return f"{error.code}: {error.sentence}"


def check_voice(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with a sentence where an option is wrong, or those of the voice contradict each other."""
    if options.reference_text is not None and options.reference_audio is None:
        parser.error("--reference-text is the transcript of --reference-audio; give that too")
    labels = [name for name in LABELS if getattr(options, name, None) is not None]
    if sum((options.reference_audio is not None, options.speaker_id is not None, bool(labels))) > 1:
        parser.error("give one voice: a recording, --speaker-id, or --gender and other labels")
    if labels and options.gender is None:
        parser.error(f"--{labels[0].replace('_', '-')} goes with --gender")
    for name in ("reference_text", "instruct_text"):
        if (value := getattr(options, name, None)) is not None and not value.strip():
            parser.error(f"--{name.replace('_', '-')} is empty; leave it out")
    for name, field in COSYVOICE2_BISTREAM.by_name.items():
        value = getattr(options, name, None)
        try:
            if field.check is not None and value is not None:
                field.check(value)
        except InvalidInputError as error:
            parser.error(error.sentence)

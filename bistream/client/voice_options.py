"""Options of the client's commands that say in which voice and manner to speak."""

from __future__ import annotations

import argparse

from bistream.errors import BistreamError
from bistream.wire import TEXT_NORMALIZATIONS

_NO_VOICE = "The voice is missing;"  # as the server's sentence begins, which goes on with the names of tensors


def add_manner_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instruct-text", metavar="TEXT", help="how to speak: an emotion, a dialect, a speed, such as 用四川话说")
    parser.add_argument("--cross-lingual", action="store_true", help="leave the voice's transcript aside: the text is in another language")


def add_normalization_argument(parser: argparse.ArgumentParser) -> None:
    text = "how the text is prepared: raw, or without what has no sound, and numbers read out or not (default: the server's)"
    parser.add_argument("--text-normalization", choices=TEXT_NORMALIZATIONS, help=text)


def refusal(error: BistreamError) -> str:
    """Code and sentence, for whoever gave options and no tensors."""
    sentence = error.sentence
    if sentence.startswith(_NO_VOICE):
        sentence = f"{_NO_VOICE} give --speaker-id, or --reference-audio with --reference-text."
    return f"{error.code}: {sentence}"


def check_voice(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with a sentence where the options of the voice contradict each other."""
    if options.reference_text is not None and options.reference_audio is None:
        parser.error("--reference-text is the transcript of --reference-audio; give that too")
    if options.reference_audio is not None and options.speaker_id is not None:
        parser.error("give either a recording or --speaker-id")
    for name in ("reference_text", "instruct_text"):
        if getattr(options, name) is not None and not getattr(options, name).strip():
            parser.error(f"--{name.replace('_', '-')} is empty; leave it out")

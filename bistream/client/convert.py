"""Voice conversion through the server: the words of a recording in another voice, while the audio arrives.

    bistream convert speech.wav --reference-audio voice.wav --output converted.wav
    bistream convert speech.wav --speaker-id anna --output - | aplay

Exit codes: those of ``bistream say``. Needs ``pip install '.[client]'``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bistream.client.audio import AudioWriter, read_reference
from bistream.client.client import BistreamClient
from bistream.client.connection import security_of
from bistream.client.exit_codes import EXIT_USAGE, fail
from bistream.client.opening import START_ARGUMENTS
from bistream.client.report import SessionReport
from bistream.client.say import add_session_arguments, check_session, receive, run
from bistream.client.voice_options import LABELS, add_flags, add_options, given_inputs
from bistream.contract.fields import COSYVOICE2_BISTREAM


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Speak the words of a recording in another voice; the file grows while the audio arrives.",
        epilog="Exit codes: 0 spoken, 1 the server refused or failed, 2 wrong usage, 3 no connection, 130 interrupted.",
    )
    parser.add_argument("source", metavar="RECORDING", help="what is to be said, 0.5 to 30 s (WAV, FLAC, ...)")
    parser.add_argument("--reference-audio", metavar="FILE", help="a recording of the voice to say it in, 0.5 to 30 s")
    parser.add_argument("--reference-text", help="transcript of that recording; not needed")
    parser.add_argument("--speaker-id", help="a registered voice or a preset of the model, instead of a recording")
    add_flags(parser, "is_marked")
    add_options(parser, (*LABELS, "seed", "speed"))
    add_session_arguments(parser)
    options = parser.parse_args(arguments)
    check_session(parser, options)
    options.security = security_of(parser, options)
    return options


def convert(options: argparse.Namespace, reference_wav: Any, output: AudioWriter, report: SessionReport) -> None:
    """Raises the error that ended the session early; the report holds what arrived before it."""
    client = BistreamClient(options.server, options.model_name, options.silence_timeout, options.security)
    values = given_inputs(COSYVOICE2_BISTREAM.by_name, options, START_ARGUMENTS)
    with client.convert(options.source_wav, reference_wav=reference_wav, session_id=options.session_id, **values) as session:
        receive(session, output, report, shows_progress=sys.stderr.isatty() and not options.quiet)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        options.source_wav = read_reference(options.source)
    except (ValueError, OSError) as error:
        return fail(str(error), EXIT_USAGE)
    return run(options, convert)


if __name__ == "__main__":
    sys.exit(main())

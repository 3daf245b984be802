"""Speaks a text through the server and writes the audio to a WAV file while it arrives.

    bistream say "Hello." --reference-audio voice.wav --reference-text "What is said in it." --output hello.wav
    llm | bistream say --stdin --speaker-id anna --output - | aplay

``python client/client_grpc.py`` is the same. Needs ``pip install '.[client]'``.
Exit codes: 0 spoken, 1 the server refused or failed, 2 wrong usage, 3 no connection, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from bistream.client.audio import FORMATS, STANDARD_OUTPUT, AudioWriter, open_output, read_reference
from bistream.client.client import BistreamClient, ClientSession
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_INTERRUPTED, EXIT_OK, EXIT_SERVER, EXIT_USAGE, fail
from bistream.client.opening import START_ARGUMENTS
from bistream.client.report import ChunkRecord, SessionReport
from bistream.client.voice_options import GENERATION_OPTIONS, LABELS, add_flags, add_options, check_voice, given_inputs, refusal
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError, EngineError

STDIN_READ_BYTES = 4096
Work = Callable[[argparse.Namespace, Any, AudioWriter, SessionReport], None]  # options, recording of the voice, output, report
# One character where words are not separated by spaces (kana and Chinese characters), else a word with its trailing whitespace.
_PIECE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+\s*|\s+")


def split_pieces(text: str) -> list[str]:
    """Words, roughly as a language model would emit them; joined, they are the text."""
    return _PIECE.findall(text)


def paced(pieces: Iterable[str], pieces_per_second: float) -> Iterator[str]:
    """The pieces at a steady rate, the first at once."""
    begin = time.monotonic()
    for index, piece in enumerate(pieces):
        time.sleep(max(0.0, begin + index / pieces_per_second - time.monotonic()))
        yield piece


def stdin_pieces() -> Iterator[bytes]:
    """Standard input as it arrives, cut anywhere."""
    while data := os.read(sys.stdin.fileno(), STDIN_READ_BYTES):
        yield data


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Speak a text through the server; the WAV file grows while the audio arrives.",
        epilog="Exit codes: 0 spoken, 1 the server refused or failed, 2 wrong usage, 3 no connection, 130 interrupted.",
    )
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("words", nargs="?", metavar="TEXT", help="the text to speak")
    text.add_argument("--text", help="the same")
    text.add_argument("--stdin", action="store_true", help="speak the standard input as it arrives")
    parser.add_argument("--text-rate", type=float, metavar="N", help="send --text in pieces, N words per second (default: all at once)")
    parser.add_argument("--reference-audio", metavar="FILE", help="a recording of the voice, 0.5 to 30 s (WAV, FLAC, ...)")
    parser.add_argument("--reference-text", help="transcript of the recording; without it the text may be in another language")
    parser.add_argument("--speaker-id", help="a registered voice or a preset of the model, instead of a recording")
    add_flags(parser, "is_cross_lingual", "is_marked")
    add_session_arguments(parser)
    add_options(parser, (*LABELS, *GENERATION_OPTIONS, "speed"))
    options = parser.parse_args(arguments)
    options.text = options.words if options.text is None else options.text
    if options.text_rate is not None and (options.text is None or options.text_rate <= 0):
        parser.error("--text-rate needs --text and a number above 0")
    check_session(parser, options)
    options.security = security_of(parser, options)
    return options


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the server is, and where audio and summary go."""
    parser.add_argument(
        "--output", default="output.wav", metavar="FILE", help="file to write, - for the standard output (default: %(default)s)"
    )
    parser.add_argument("--format", choices=FORMATS, default="wav", help="wav, or pcm: samples of 16 bit alone (default: %(default)s)")
    parser.add_argument("--server", default="localhost:8001", metavar="HOST:PORT", help="gRPC address (default: %(default)s)")
    parser.add_argument("--model-name", default=COSYVOICE2_BISTREAM.name, help="default: %(default)s")
    parser.add_argument("--session-id", help="default: a random one")
    parser.add_argument("--silence-timeout", type=float, default=60.0, metavar="SECONDS", help="give up after this long without a response")
    parser.add_argument("--json", action="store_true", help="print a summary as one JSON line on the standard output")
    parser.add_argument("--quiet", action="store_true", help="show no progress on a terminal")
    add_security_arguments(parser)


def check_session(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Of the options that ``say`` and ``convert`` share."""
    if options.json and options.output == STANDARD_OUTPUT:
        parser.error("the standard output takes either --json or the audio")
    check_voice(parser, options)


def start_session(options: argparse.Namespace, reference_wav: Any) -> ClientSession:
    """The start carries the text when all of it is sent at once."""
    values: dict[str, Any] = given_inputs(COSYVOICE2_BISTREAM.by_name, options, START_ARGUMENTS)
    if options.text is not None and options.text_rate is None:
        values.update(text=options.text, is_end=True)
    client = BistreamClient(options.server, options.model_name, options.silence_timeout, options.security)
    return client.start(reference_wav=reference_wav, session_id=options.session_id, **values)


def feed(session: ClientSession, pieces: Iterable[str | bytes]) -> None:
    """Runs in its own thread; ends when the session does, and the iteration raises the reason."""
    with suppress(BistreamError, ConnectionError):
        for piece in pieces:
            session.push_text(piece)
        session.end_text()


def speak(options: argparse.Namespace, reference_wav: Any, output: AudioWriter, report: SessionReport) -> None:
    """Raises the error that ended the session early; the report holds what arrived before it."""
    with start_session(options, reference_wav) as session:
        if options.stdin or options.text_rate is not None:
            pieces = stdin_pieces() if options.stdin else paced(split_pieces(options.text), options.text_rate)
            threading.Thread(target=feed, args=(session, pieces), daemon=True).start()
        receive(session, output, report, shows_progress=sys.stderr.isatty() and not options.quiet)


def receive(session: ClientSession, output: AudioWriter, report: SessionReport, shows_progress: bool) -> None:
    """Write the audio as it arrives. Raises the error that ended the session early; the report holds what arrived before it."""
    report.session_id = session.session_id
    try:
        for chunk in session:
            output.sample_rate = report.sample_rate = session.sample_rate
            output.write(chunk.waveform)
            arrived_s = chunk.arrived_at - session.started_at
            report.chunks.append(ChunkRecord(arrived_s, chunk.waveform.size / report.sample_rate, chunk.text_consumed))
            if shows_progress:
                print(f"\r{report.audio_s:7.2f} s of audio, {arrived_s:7.2f} s", end="", file=sys.stderr, flush=True)
        if not report.chunks:
            raise EngineError("The server ended the session without any audio; look at its log.")
    except KeyboardInterrupt:
        with suppress(BistreamError, ConnectionError):
            session.cancel()
        raise
    finally:
        report.wall_s = time.monotonic() - session.started_at
        if session.text_ended_at is not None:
            report.text_ended_s = session.text_ended_at - session.started_at
        if shows_progress:
            print(file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return run(options, speak)


def run(options: argparse.Namespace, work: Work) -> int:
    """Do the work with its output open, and say how it went. The exit code; every failure is one line on the standard error."""
    report = SessionReport(session_id=options.session_id or "", chunks=[])
    try:
        reference_wav = read_reference(options.reference_audio) if options.reference_audio is not None else None
        with open_output(options.output, options.format) as output:
            code = _exit_code(lambda: work(options, reference_wav, output, report), report)
    except (ValueError, OSError) as error:
        return fail(str(error), EXIT_USAGE)
    if options.json:
        print(json.dumps({"output": options.output, **report.as_dict()}, ensure_ascii=False))
    elif code == EXIT_OK:
        where = "standard output" if options.output == STANDARD_OUTPUT else options.output
        print(f"{where}: {report.as_text()}", file=sys.stderr)
    return code


def _exit_code(work: Callable[[], None], report: SessionReport) -> int:
    try:
        work()
        return EXIT_OK
    except BistreamError as error:
        report.error, code = refusal(error), EXIT_SERVER
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails at its end, writing what is left
        report.error, code = "nobody reads the standard output any more", EXIT_USAGE
    except (ConnectionError, TimeoutError) as error:
        report.error, code = str(error), EXIT_CONNECTION
    except KeyboardInterrupt:
        report.error, code = "interrupted", EXIT_INTERRUPTED
    return fail(report.error, code)


if __name__ == "__main__":
    sys.exit(main())

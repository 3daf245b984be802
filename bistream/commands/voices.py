"""Registered voices, which callers name by speaker_id instead of sending a recording. A running server finds changes by itself.

    bistream voices add anna --model-dir CosyVoice2-0.5B --reference-audio anna.wav --reference-text "What she says."
    bistream voices add bert --model-dir Spark-TTS-0.5B --gender male --pitch low --seed 7
    bistream voices add --model-dir CosyVoice2-0.5B --import-spk2info CosyVoice2-0.5B/spk2info.pt
    bistream voices list
    bistream voices list --server localhost:8001
    bistream voices remove anna

The recording is trimmed to its speech; what could be better about it is said on the standard error.
Exit codes: 0 done, 1 not, for the reason in the last line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bistream.checkpoints.files import family_of
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_OK, fail
from bistream.client.inquiry import Inquiry
from bistream.contract.checks import GENDERS, LEVELS
from bistream.errors import BistreamError
from bistream.text2token.one_table.prompts import Labels
from bistream.voice.registry import VoiceRegistry

EXIT_FAILED = 1
VOICES_DIR = Path("voices")  # that of run.sh
SERVER_TIMEOUT_S = 10.0


def _rename(text: str) -> tuple[str, str]:
    name, separator, speaker_id = text.rpartition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return name, speaker_id


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="add | list | remove")
    add = verbs.add_parser("add", help="register a voice, or replace it")
    add.add_argument("speaker_id", nargs="?", metavar="SPEAKER_ID", help="its name: 1 to 64 of A-Z a-z 0-9 _ -")
    add.add_argument("--reference-audio", type=Path, metavar="FILE", help="a recording of the voice, 0.5 to 30 s, 16 kHz or more")
    add.add_argument("--reference-text", help="what is said in it")
    add.add_argument("--gender", choices=GENDERS, help="make the voice of labels instead of a recording (Spark-TTS)")
    add.add_argument("--pitch", choices=LEVELS, help="of that voice (default: moderate)")
    add.add_argument("--speaking-rate", choices=LEVELS, help="of that voice (default: moderate)")
    add.add_argument("--seed", type=int, default=0, help="another one makes another voice of the same labels (default: %(default)s)")
    add.add_argument("--import-spk2info", type=Path, metavar="FILE", help="all speakers of upstream's spk2info.pt instead")
    add.add_argument("--rename", type=_rename, action="append", default=[], metavar="OLD=NEW", help="other id for an imported speaker")
    add.add_argument("--raw", action="store_true", help="take the recording as it comes: no trimming, any sound")
    list_ = verbs.add_parser(
        "list", help="the registered voices, with seconds and words of their recordings, or all that a server has by name"
    )
    list_.add_argument("--server", metavar="HOST:PORT", help="gRPC of a server: its presets and registered voices, the default first")
    add_security_arguments(list_)
    remove = verbs.add_parser("remove", help="forget a voice; running sessions keep it")
    remove.add_argument("speaker_id", metavar="SPEAKER_ID")
    for verb in (add, list_, remove):
        verb.add_argument(
            "--voices-dir", type=Path, default=VOICES_DIR, metavar="DIR", help="voices_dir of the server (default: %(default)s)"
        )
        verb.add_argument(
            "--model-dir",
            type=Path,
            required=verb is add,
            metavar="DIR",
            help="CosyVoice2-0.5B, Fun-CosyVoice3-0.5B-2512 or Spark-TTS-0.5B, with whose networks it is made",
        )
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.verb != "add":
        return
    recording, labels = (options.reference_audio, options.reference_text), (options.gender, options.pitch, options.speaking_rate)
    is_made, is_imported = options.gender is not None, options.import_spk2info is not None
    if not is_imported and (options.speaker_id is None or (not is_made and None in recording)):
        parser.error("give SPEAKER_ID with --reference-audio and --reference-text, or with --gender; or --import-spk2info")
    if is_imported and any(value is not None for value in (options.speaker_id, *recording, *labels)):
        parser.error("--import-spk2info goes without SPEAKER_ID, a recording and labels")
    if is_made and any(value is not None for value in recording):
        parser.error("give either a recording or --gender")
    if not is_made and any(value is not None for value in labels):
        parser.error("--pitch and --speaking-rate go with --gender")
    if options.rename and options.import_spk2info is None:
        parser.error("--rename goes with --import-spk2info")


def _add(options: argparse.Namespace, registry: VoiceRegistry) -> None:
    from bistream.commands.voice_making import Spoken, add_made, add_recording, add_speakers  # noqa: PLC0415  (loads torch)

    if options.import_spk2info is not None:
        speaker_ids = add_speakers(options.model_dir, registry, options.import_spk2info, dict(options.rename))
    elif options.gender is not None:
        labels = Labels.of(options.gender, options.pitch, options.speaking_rate)
        add_made(options.model_dir, registry, options.speaker_id, labels, options.seed)
        speaker_ids = [options.speaker_id]
    else:
        recording = Spoken(options.reference_audio, options.reference_text, options.raw)
        add_recording(options.model_dir, registry, options.speaker_id, recording, lambda sentence: _warn(recording.path, sentence))
        speaker_ids = [options.speaker_id]
    for speaker_id in speaker_ids:
        print(f"{speaker_id}: {_prompt(registry, speaker_id, options.model_dir)} in {options.voices_dir}")


def _warn(path: Path, sentence: str) -> None:
    print(f"warning: {path}: {sentence}", file=sys.stderr)


def _prompt(registry: VoiceRegistry, speaker_id: str, model_dir: Path | None) -> str:
    seconds = registry.recorded(speaker_id)[1] / family_of(model_dir or "").audio_format.tokens_per_second
    return f"{seconds:.2f} s of prompt" if seconds else "a voice without a recording"


def _open(options: argparse.Namespace) -> VoiceRegistry:
    if options.model_dir is None:
        return VoiceRegistry(options.voices_dir)
    from bistream.voice.made_with import voice_fingerprint  # noqa: PLC0415  (needs the server's packages)

    return VoiceRegistry(options.voices_dir, voice_fingerprint(options.model_dir))


def _list(options: argparse.Namespace, registry: VoiceRegistry) -> None:
    speaker_ids = registry.speaker_ids()
    if not speaker_ids:
        print(f"no voice is registered in {options.voices_dir}; add one with: bistream voices add", file=sys.stderr)
    for speaker_id in speaker_ids:
        try:
            print(f"{speaker_id}: {_prompt(registry, speaker_id, options.model_dir)}, {registry.recorded(speaker_id)[0]!r}")
        except BistreamError as error:
            print(f"{speaker_id}: {error.sentence}")


def _list_of_server(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        voices = Inquiry(options.server, security_of(parser, options), SERVER_TIMEOUT_S).voices()
    except BrokenPipeError:  # of the standard output
        raise
    except (BistreamError, ConnectionError) as error:
        return fail(str(error), EXIT_FAILED)
    for voice in voices:
        print(f"{voice.name}: {voice.kind}{', the default' if voice.is_default else ''}")
    if not voices:
        print(f"the server at {options.server} has no voice by name; add one with: bistream voices add", file=sys.stderr)
    return EXIT_OK


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    if options.verb == "list" and options.server is not None:
        return _list_of_server(parser, options)
    try:
        registry = _open(options)
        if options.verb == "add":
            _add(options, registry)
        elif options.verb == "list":
            _list(options, registry)
        else:
            registry.remove(options.speaker_id)
            print(f"{options.speaker_id} is removed from {options.voices_dir}")
    except BistreamError as error:
        return fail(error.sentence, EXIT_FAILED)
    except BrokenPipeError:  # of the standard output
        raise
    except OSError as error:
        return fail(f"{options.voices_dir} cannot be changed ({error.strerror}); choose another --voices-dir.", EXIT_FAILED)
    return EXIT_OK

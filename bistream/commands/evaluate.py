"""What a checkpoint sounds like through this server: sentences in several forms, judged by others' networks, in one report.

    bistream evaluate --model-dir CosyVoice2-0.5B --reference-audio me.wav --reference-text "What I say." --out report
    bistream evaluate --server localhost:8001 --speaker-id anna --set chinese --set mine=mine.jsonl --out report
    bistream evaluate --model-dir assets/voice --speaker-id nora --similar-to assets/voice/recordings/nora.wav \\
        --compare solver_steps=5 --fail-if "wer:one_shot>5%" --fail-if "word_by_word-one_shot>0.5%" --out report

Forms: reference (offline, plain PyTorch, full attention; of a model directory), one_shot, word_by_word (of Chinese: characters), and a
comparison KEY=VALUE or FORM:KEY=VALUE, word by word or in FORM under another setting of the server. Judges: whisper[=MODEL],
paraformer=FOLDER, dnsmos, speaker (Resemblyzer), campplus (the checkpoint's); `bash run.sh judges` installs them.
Writes OUT.html, which needs no network, and OUT.json.
Exit codes: 0 done, 1 a condition of --fail-if holds, 2 not done, for the reason in the last line, 3 no connection.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bistream.checkpoints.files import family_of
from bistream.checkpoints.model_card import read_model_card
from bistream.client.client import BistreamClient
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_OK, EXIT_USAGE, fail
from bistream.client.inquiry import Inquiry, parameters_of
from bistream.client.voice_options import check_voice
from bistream.config import RuntimeConfig
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError, InvalidInputError
from bistream.evaluation import report as reports
from bistream.evaluation.forms import KINDS, REFERENCE, Form, make_forms, pairs_of
from bistream.evaluation.judge_process import DEFAULT_PYTHON, WANTED
from bistream.evaluation.judging import chosen_judges, judge_all
from bistream.evaluation.sets import BUILT_IN, Sentence, read_sets, spoken_and_left_out
from bistream.evaluation.speaking import (
    LocalSpeaker,
    ServerSpeaker,
    Utterance,
    configured,
    kept_utterances,
    read_recordings,
    read_voice,
    speak,
)
from bistream.evaluation.thresholds import parse_threshold
from bistream.local import VoiceChoice
from bistream.store.fingerprint import files_hash, versions

EXIT_CONDITION = 1
WORST = 20


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    spoken = parser.add_mutually_exclusive_group(required=True)
    spoken.add_argument("--model-dir", type=Path, metavar="DIR", help="speak with a checkpoint in this process")
    spoken.add_argument("--server", metavar="HOST:PORT", help="speak through a running server (gRPC)")
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="REPORT", help="where the report goes: REPORT.html and REPORT.json")
    of_set = f"{', '.join(BUILT_IN)} (default: all); or a JSONL file with a text in each row, or recordings: Parquet, JSONL, a manifest"
    add("--set", action="append", dest="sets", metavar="NAME[=PATH]", help=of_set)
    add("--count", type=int, metavar="N", help="sentences of each set at most")
    add("--form", action="append", dest="forms", choices=KINDS, help="default: all that can be")
    add("--compare", action="append", default=[], metavar="[FORM:]KEY=VALUE", help="speak under another setting as well")
    add("--recordings", action="append", default=[], metavar="NAME=FOLDER", help="judge a folder of SET/ID.wav as another form")
    add("--setting", action="append", default=[], metavar="KEY=VALUE", help="of the server, for all forms of --model-dir")
    add("--together", type=int, default=8, metavar="N", help="sessions at the same time (default: %(default)s)")
    add("--speaker-id", help="a preset of the checkpoint or a registered voice")
    add("--reference-audio", metavar="FILE", help="a recording of the voice, 0.5 to 30 s")
    add("--reference-text", help="what is said in it")
    add("--similar-to", type=Path, metavar="FILE", help="what judges compare the voice with (default: --reference-audio)")
    add("--judge", action="append", dest="judges", metavar="NAME[=MODEL]", help=f"default: {', '.join(WANTED)}")
    add("--judges-python", type=Path, default=DEFAULT_PYTHON, metavar="FILE", help="of the judges' environment (default: %(default)s)")
    add("--judge-processes", type=int, default=1, metavar="N", help="of each judge; each uses a core (default: %(default)s)")
    add("--fail-if", action="append", default=[], metavar="CONDITION", help="e.g. 'wer>3%%', 'word_by_word-one_shot>0.5%%'")
    add("--players", type=int, default=WORST, metavar="N", help="worst sentences that can be heard in the report (default: %(default)s)")
    add("--keep", type=Path, metavar="FOLDER", help="keep all sounds, as FORM/SET/ID.wav")
    add("--resume", action="store_true", help="take what an interrupted run has kept")
    add_security_arguments(parser)
    return parser


def evaluate(options: argparse.Namespace) -> int:
    """Raises ``BistreamError``, ``ConnectionError`` and ``OSError`` with a sentence."""
    languages, facts = known_of_server(options) if options.server else known_of_model(options.model_dir)
    sentences, notes = spoken_and_left_out(read_sets(options.sets or BUILT_IN, options.count), languages)
    if not sentences:
        raise InvalidInputError("There is no sentence to speak; give a --set in a language of the checkpoint.")
    kinds = options.forms or [kind for kind in KINDS if options.model_dir or kind != REFERENCE]
    forms = make_forms(kinds, options.compare, options.recordings)
    if options.server and (options.compare or options.setting or REFERENCE in kinds):
        raise InvalidInputError("--compare, --setting and the form reference need --model-dir; a server has its own settings.")
    names = [form.name for form in forms]
    thresholds = [parse_threshold(text, names) for text in options.fail_if]
    pairs = pairs_of(forms)
    pairs += [(one, other) for each in thresholds for one in names for other in names if f"{one}-{other}" in each.names]
    pairs = list(dict.fromkeys(pairs))
    likeness = options.similar_to or (Path(options.reference_audio) if options.reference_audio else None)
    if likeness is not None:
        read_voice(likeness)  # before anything is spoken
    judges = chosen_judges(options.judges or WANTED, options.model_dir)
    with tempfile.TemporaryDirectory(prefix="bistream_evaluate_") as temporary:
        spoken = speak_all(options, forms, sentences, options.keep or Path(temporary))
        sounds = len({(number, one.digest) for form in spoken.values() for number, one in form.items() if one.path})
        with tqdm(total=sounds * len(judges), desc="judging", unit="sound", disable=None) as progress:
            judged = judge_all(sentences, spoken, judges, options.judges_python, options.judge_processes, likeness, progress.update)
        means = reports.means_of(sentences, spoken, pairs)
        facts |= {
            "command": options.command,
            "settings": options.setting,
            "notes": notes,
            "judges": judged,
            "equal": reports.equal_sounds(spoken, pairs),
        }
        ours = {form.name: spoken[form.name] for form in forms if form.recordings is None}
        whole = reports.describe(sentences, forms, spoken, means, facts, reports.worst(ours, WORST))
        reports.write(options.out, whole, spoken, options.players)
    failures = [line for each in thresholds for line in each.failures(next(iter(means.values())))]
    unavailable = [f"{one['name']} did not judge: {one['unavailable']}." for one in judged if "unavailable" in one]
    for line in [*notes, *unavailable, *failures]:
        print(line)
    print(f"{options.out.with_suffix('.html')} and .json: {len(sentences)} sentences in {len(forms)} forms")
    return EXIT_CONDITION if failures else EXIT_OK


def known_of_model(model_dir: Path) -> tuple[frozenset[str], dict[str, Any]]:
    """Languages (empty: any), and what the report says of it."""
    family = family_of(model_dir)
    names = [name for names in family.required_files for name in names if (model_dir / name).exists()]
    packages = versions("torch", "numpy", "onnxruntime", "soundfile")
    facts = {"model": model_dir.resolve().name, "family": family.title, "hash": files_hash(model_dir, names), "packages": packages}
    return read_model_card(model_dir).languages, facts


def known_of_server(options: argparse.Namespace) -> tuple[frozenset[str], dict[str, Any]]:
    parameters = parameters_of(Inquiry(options.server, options.security, 60.0).config(COSYVOICE2_BISTREAM.name))
    languages = frozenset(filter(None, parameters.get("languages", "").split(",")))
    return languages, {"model": options.server, "family": parameters.get("model_family", ""), "packages": versions("numpy", "soundfile")}


def speak_all(
    options: argparse.Namespace, forms: Sequence[Form], sentences: Sequence[Sentence], folder: Path
) -> dict[str, dict[int, Utterance]]:
    """By form, then by number of the sentence. Forms with equal settings share their networks."""
    found: dict[str, dict[int, Utterance]] = {form.name: {} for form in forms}
    groups: dict[RuntimeConfig | None, list[Form]] = {}
    for form in forms:
        if form.recordings is not None:
            found[form.name] = read_recordings(form, sentences, folder)
        else:
            groups.setdefault(None if options.server else _config(options, form), []).append(form)
    if options.resume:
        for form in (form for group in groups.values() for form in group):
            found[form.name] = kept_utterances(form, sentences, folder)
    for config, group in groups.items():
        if all(len(found[form.name]) == len(sentences) for form in group):
            continue
        speaker = _speaker(options, config)
        try:
            for form in group:
                left = [sentence for sentence in sentences if sentence.number not in found[form.name]]
                with tqdm(total=len(left), desc=form.name, unit="sentence", disable=None) as progress:
                    found[form.name] |= speak(speaker, form, left, folder, options.together, progress.update, bool(found[form.name]))
        finally:
            speaker.close()
    return found


def _speaker(options: argparse.Namespace, config: RuntimeConfig | None) -> LocalSpeaker | ServerSpeaker:
    """config: None: a server."""
    reference = None if options.reference_audio is None else read_voice(options.reference_audio)
    if config is not None:
        return LocalSpeaker(config, VoiceChoice(reference, options.reference_text, options.speaker_id))
    inputs = {"speaker_id": options.speaker_id, "reference_wav": reference, "reference_text": options.reference_text}
    given = {name: value for name, value in inputs.items() if value is not None}
    return ServerSpeaker(BistreamClient(options.server, security=options.security), given)


def _config(options: argparse.Namespace, form: Form) -> RuntimeConfig:
    given: dict[str, str] = {"model_dir": str(options.model_dir), "max_sessions": str(options.together + 1)}
    for setting in options.setting:
        key, separator, value = setting.partition("=")
        if not separator:
            raise InvalidInputError(f"{setting} is no setting; give --setting KEY=VALUE.")
        given[key] = value
    return configured(RuntimeConfig.from_strings(given), form)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(words)
    if min(options.together, options.judge_processes, options.count or 1) < 1:
        parser.error("--together, --judge-processes and --count must be 1 or more")
    if options.resume and options.keep is None:
        parser.error("--resume needs --keep, where the sounds are")
    check_voice(parser, options)
    options.security = security_of(parser, options)
    options.command = shlex.join(["bistream", "evaluate", *words]).replace(options.security.api_key or "\0", "KEY")
    try:
        return evaluate(options)
    except BistreamError as error:
        return fail(error.sentence, EXIT_USAGE)
    except (ConnectionError, TimeoutError) as error:
        return fail(str(error), EXIT_CONNECTION)
    except OSError as error:
        return fail(str(error), EXIT_USAGE)


if __name__ == "__main__":
    sys.exit(main())

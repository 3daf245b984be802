"""Has the utterances judged, each sound once: forms whose samples are equal share their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bistream.errors import InvalidInputError
from bistream.evaluation.judge_process import DEFAULT_PYTHON, NAMES, JudgeChoice, JudgeProcess
from bistream.evaluation.sets import Sentence
from bistream.evaluation.sound import lengths_flags, ordinary_s
from bistream.evaluation.speaking import Utterance
from bistream.evaluation.texts import compare, units_of

Spoken = Mapping[str, Mapping[int, Utterance]]  # by form, then by number of the sentence
Sound = tuple[int, str]  # number of the sentence, digest
VOICES = ("speaker", "campplus")  # judges that compare with a recording
Report = list[dict[str, Any]]


def chosen_judges(given: Sequence[str], model_dir: Path | None) -> list[JudgeChoice]:
    """given: NAME or NAME=MODEL. Raises ``InvalidInputError``."""
    found = []
    for one in given:
        name, _, model = one.partition("=")
        if name not in NAMES or (name == "paraformer" and not model):
            raise InvalidInputError(f"There is no judge {one!r}; choose of whisper[=MODEL], paraformer=FOLDER, {', '.join(NAMES[2:])}.")
        if name == "campplus":
            if model_dir is None:
                continue  # a server does not give its CAM++
            model = str(model_dir.resolve())
        found.append(JudgeChoice(name, model or ("base" if name == "whisper" else "")))
    return found


def judge_all(
    sentences: Sequence[Sentence],
    spoken: Spoken,
    judges: Sequence[JudgeChoice],
    python: Path,
    processes: int,
    likeness: Path | None,
    tell: Callable[[], object],
) -> Report:
    """Adds scores to the utterances. processes: of each judge. likeness: a recording of the voice, for sentences without one. tell: called
    for each sound and judge.
    Returns what each judge is and has cost, or why it did not judge. Raises ``EngineError``."""
    by_number = {sentence.number: sentence for sentence in sentences}
    sounds: dict[Sound, Path] = {
        (number, one.digest): one.path for form in spoken.values() for number, one in form.items() if one.path is not None
    }
    results: dict[Sound, dict[str, Any]] = {sound: {} for sound in sounds}
    hears_chinese = any(choice.name == "paraformer" for choice in judges)

    def run(choice: JudgeChoice, wanted: Sequence[Sound]) -> dict[str, Any]:
        with ExitStack() as stack:
            try:
                process = stack.enter_context(JudgeProcess(choice, python))
            except OSError:
                return {"unavailable": f"{python} is not there; in a checkout `bash run.sh judges` makes {DEFAULT_PYTHON}"}
            if process.unavailable:
                return {"unavailable": process.unavailable}
            targets: dict[Path, Any] = {}
            for sound in wanted:
                results[sound].update(_judge(process, by_number[sound[0]], sounds[sound], likeness, targets))
                tell()
            return {"packages": process.packages, "sounds": len(wanted), **process.cost()}

    def run_all(choice: JudgeChoice) -> dict[str, Any]:
        report = {"name": choice.name, "model": Path(choice.model).name}
        if choice.name in VOICES and likeness is None and all(one.recording is None for one in sentences):
            return {**report, "unavailable": "there is no recording of the voice; name one with --similar-to"}
        wanted = [sound for sound in sounds if _concerns(choice.name, by_number[sound[0]], hears_chinese)]
        shares = [wanted[number::processes] for number in range(min(processes, max(1, len(wanted))))]
        with ThreadPoolExecutor(len(shares)) as pool:
            return {**report, **_summed(list(pool.map(run, [choice] * len(shares), shares)))}

    with ThreadPoolExecutor(max(1, len(judges))) as pool:
        reports = list(pool.map(run_all, judges))
    are_words_judged = any("errors" in found for found in results.values())
    for form in spoken.values():
        for number, one in form.items():
            units = len(units_of(by_number[number].text))
            nothing = {"heard": "", "errors": units, "units": units} if are_words_judged else {}
            one.scores.update(nothing if one.path is None else results[number, one.digest])
        _flag(by_number, form)
    return reports


def _summed(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the processes of one judge."""
    refused = [one for one in reports if "unavailable" in one]
    costs = ("sounds", "load_s", "judge_s", "memory_mb")
    return refused[0] if refused else {**reports[0], **{name: round(sum(one[name] for one in reports), 1) for name in costs}}


def _concerns(judge: str, sentence: Sentence, hears_chinese: bool) -> bool:
    """Of two judges of words each has its language."""
    is_for_paraformer = hears_chinese and sentence.language == "zh"
    return {"whisper": not is_for_paraformer, "paraformer": is_for_paraformer}.get(judge, True)


def _judge(process: JudgeProcess, sentence: Sentence, path: Path, likeness: Path | None, targets: dict[Path, Any]) -> dict[str, Any]:
    found = process.judge(path, sentence.text, sentence.language)
    if (heard := found.get("heard")) is not None:
        compared = compare(sentence.text, heard)
        found |= {"errors": compared.errors, "units": compared.units, "missing_end": compared.missing_end}
    recording = sentence.recording or likeness
    if (vector := found.pop("vector", None)) is not None and recording is not None:
        if recording not in targets:
            targets[recording] = process.judge(recording, "", sentence.language)["vector"]
        found[process.name] = round(float(np.dot(vector, targets[recording])), 4)
    return found


def _flag(sentences: Mapping[int, Sentence], form: Mapping[int, Utterance]) -> None:
    spoken = [(sentences[number].text, one.scores) for number, one in form.items() if one.path is not None]
    paces = [scores["seconds"] / ordinary_s(text) for text, scores in spoken]
    missing = [(scores["missing_end"], scores["units"]) if "missing_end" in scores else None for _, scores in spoken]
    for (_, scores), (is_runaway, is_early_end) in zip(spoken, lengths_flags(paces, missing), strict=True):
        scores.update(is_runaway=is_runaway, is_early_end=is_early_end)

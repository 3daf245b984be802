"""The report: everything as one object, which is the JSON, and the same in one HTML file that needs no network."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import soundfile

from bistream import __version__
from bistream.evaluation.forms import Form
from bistream.evaluation.judging import Spoken
from bistream.evaluation.metrics import METRICS
from bistream.evaluation.sets import Sentence
from bistream.evaluation.speaking import Utterance
from bistream.evaluation.statistics import Estimate, Scores, difference, mean

ALL = "all"
_PLACE_OF_DATA, _PLACE_OF_SOUNDS = "/*REPORT*/", "/*SOUNDS*/"
Means = dict[str, dict[str, Estimate]]  # by form or "A-B", then by metric


def means_of(sentences: Sequence[Sentence], spoken: Spoken, pairs: Sequence[tuple[str, str]]) -> dict[str, Means]:
    """By set, and of all sets under ``ALL``."""
    sets = dict.fromkeys(sentence.set_name for sentence in sentences)
    numbers = {ALL: {sentence.number for sentence in sentences}} if len(sets) > 1 else {}
    numbers |= {name: {one.number for one in sentences if one.set_name == name} for name in sets}
    return {name: _means(spoken, wanted, pairs) for name, wanted in numbers.items()}


def _means(spoken: Spoken, numbers: set[int], pairs: Sequence[tuple[str, str]]) -> Means:
    found: Means = {name: {} for name in [*spoken, *(f"{one}-{other}" for one, other in pairs)]}
    for metric in METRICS:
        scores: dict[str, Scores] = {
            name: {number: pair for number, one in form.items() if number in numbers and (pair := metric.of(one.scores)) is not None}
            for name, form in spoken.items()
        }
        estimates = {name: mean(each) for name, each in scores.items()}
        estimates |= {f"{one}-{other}": difference(scores[one], scores[other]) for one, other in pairs}
        for name, estimate in estimates.items():
            if estimate is not None:
                found[name][metric.name] = estimate
    return found


def equal_sounds(spoken: Spoken, pairs: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    """Of each pair, in how many sentences the samples are equal, and of how many."""
    found = {}
    for one, other in pairs:
        both = [(spoken[one][number], spoken[other][number]) for number in spoken[one].keys() & spoken[other].keys()]
        digests = [(first.digest, second.digest) for first, second in both if first.path is not None and second.path is not None]
        found[f"{one}-{other}"] = [sum(first == second for first, second in digests), len(digests)]
    return found


def worst(spoken: Spoken, count: int) -> list[int]:
    """Numbers of sentences, the worst first: by the worst of their forms; failed, runaway or cut off, then errors, then DNSMOS."""

    def badness(number: int) -> tuple[float, float, float]:
        scores = [form[number].scores for form in spoken.values() if number in form]
        flags = max(sum(bool(one.get(name)) for name in ("is_failed", "is_runaway", "is_early_end")) for one in scores)
        errors = max(one.get("errors", 0) / max(1, one.get("units", 1)) for one in scores)
        return float(flags > 0) + errors, errors, -min(one.get("overall", math.inf) for one in scores)

    numbers = sorted({number for form in spoken.values() for number in form})
    return sorted(numbers, key=badness, reverse=True)[:count]


def describe(
    sentences: Sequence[Sentence],
    forms: Sequence[Form],
    spoken: Spoken,
    means: Mapping[str, Means],
    facts: Mapping[str, Any],
    worst_numbers: Sequence[int],
) -> dict[str, Any]:
    """The object of the JSON."""
    rows = [
        {key: value for key, value in asdict(one).items() if key in ("number", "set_name", "id", "text", "language")}
        | {"forms": {name: _scores(form[one.number]) for name, form in spoken.items() if one.number in form}}
        for one in sentences
    ]
    return {
        "bistream": __version__,
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "hardware": f"{os.cpu_count()} x {platform.processor() or platform.machine()}",
        **facts,
        "metrics": [asdict(metric) for metric in METRICS],
        "forms": [{"name": form.name, "kind": form.kind, "settings": dict(form.settings)} for form in forms],
        "means": {
            name: {form: {metric: _rounded(one) for metric, one in each.items()} for form, each in group.items()}
            for name, group in means.items()
        },
        "worst": list(worst_numbers),
        "sentences": rows,
    }


def _scores(utterance: Utterance) -> dict[str, Any]:
    failed = {} if utterance.path is not None else {"error": utterance.error}
    return {"sound": utterance.digest, **utterance.scores, **failed}


def _rounded(estimate: Estimate) -> list[float | int | None]:
    """Value, both ends of its interval, sentences."""
    values = (estimate.value, estimate.low, estimate.high)
    return [*(round(value, 5) if math.isfinite(value) else None for value in values), estimate.count]


def _commit() -> str | None:
    """Of a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write(path: Path, report: Mapping[str, Any], spoken: Spoken, sounds: int) -> None:
    """PATH.html and PATH.json. sounds: how many of the worst sentences can be heard in the page. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {name: value for name, value in report.items() if name != "sentences"}
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in report["sentences"])
    text = f'{json.dumps(head, ensure_ascii=False, indent=1)[:-2]},\n "sentences": [\n{rows}\n]}}\n'
    path.with_suffix(".json").write_text(text, encoding="utf-8")
    heard = {
        one.digest: one.path for number in report["worst"][:sounds] for form in spoken.values() if (one := form.get(number)) and one.path
    }
    encoded = {digest: f"data:audio/mpeg;base64,{base64.b64encode(_mp3(sound)).decode()}" for digest, sound in heard.items()}
    page = files("bistream.evaluation").joinpath("page.html").read_text(encoding="utf-8")
    for place, content in ((_PLACE_OF_DATA, text), (_PLACE_OF_SOUNDS, json.dumps(encoded))):
        page = page.replace(place, content.replace("<", "\\u003c"), 1)
    path.with_suffix(".html").write_text(page, encoding="utf-8")


def _mp3(path: Path) -> bytes:
    samples, rate = soundfile.read(path, dtype="float32")
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="MP3")
    return buffer.getvalue()

"""In which forms a sentence is spoken.

- ``reference``: offline, as the reference implementation does it: plain PyTorch in float32, the flow's attention over all speech
- ``one_shot``: the text in one request, the audio streamed
- ``word_by_word``: the text in pieces, words or, of Chinese, characters
- a comparison, ``[FORM:]KEY=VALUE``: word by word, or in the form that it names, under another setting of the server
- recordings, ``NAME=FOLDER`` with ``SET/ID.wav``: of a teacher, or of another server
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError

REFERENCE, ONE_SHOT, WORD_BY_WORD = KINDS = ("reference", "one_shot", "word_by_word")
_AS_THE_REFERENCE = {"kernels": "plain", "dtype": "float32", "left_context_chunks": "0", "solver_steps": "0"}


@dataclass(frozen=True)
class Form:
    """kind: one of ``KINDS``. settings: of the server, beside those of all forms. recordings: a folder that has the sound already.
    base: name of the form that differs from it by the settings alone."""

    name: str
    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)
    recordings: Path | None = None
    base: str | None = None


def make_forms(kinds: Sequence[str], comparisons: Iterable[str], recordings: Iterable[str]) -> list[Form]:
    """In their order; the form with which a comparison is compared is there even where ``kinds`` lacks it. Raises ``InvalidInputError``."""
    forms = {kind: Form(kind, kind, _AS_THE_REFERENCE if kind == REFERENCE else {}) for kind in kinds}
    for given in recordings:
        name, separator, folder = given.partition("=")
        if not separator or not Path(folder).is_dir():
            raise InvalidInputError(f"{given} names no folder of recordings; give NAME=FOLDER, with files SET/ID.wav.")
        forms[name] = Form(name, name, recordings=Path(folder))
    for given in comparisons:
        kind, colon, setting = given.rpartition(":")
        key, separator, value = setting.partition("=")
        kind = kind if colon else WORD_BY_WORD
        if not separator or kind not in KINDS:
            raise InvalidInputError(f"{given} is no comparison; give [FORM:]KEY=VALUE with one of the forms {', '.join(KINDS)}.")
        RuntimeConfig.from_strings({key: value})  # refuses unknown settings and unusable values
        base = forms.setdefault(kind, Form(kind, kind, _AS_THE_REFERENCE if kind == REFERENCE else {}))
        forms[given] = Form(given, kind, {**base.settings, key: value}, base=kind)
    return list(forms.values())


def pairs_of(forms: Sequence[Form]) -> list[tuple[str, str]]:
    """Names of forms whose difference is reported: a comparison and its base, every other form and the first, one shot and word by word."""
    names = [form.name for form in forms if form.base is None]
    pairs = [(form.name, form.base) for form in forms if form.base is not None]
    pairs += [(name, names[0]) for name in names[1:]]
    if WORD_BY_WORD in names and ONE_SHOT in names[1:]:
        pairs.append((WORD_BY_WORD, ONE_SHOT))
    return pairs

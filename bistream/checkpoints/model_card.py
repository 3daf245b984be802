"""What a checkpoint can do that its weights don't say: languages, instructions, the longest speech it was trained on.

A checkpoint says so in ``training.json``, which lies beside its networks; the released ones have none, and their family says it. Other
keys of that file are the training's own. No torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bistream.checkpoints.files import family_of
from bistream.errors import CheckpointError

MODEL_CARD_FILE = "training.json"


@dataclass(frozen=True)
class ModelCard:
    """Defaults: the released checkpoints.

    longest_utterance_s: seconds of speech, a prompt's included, that the language model was trained to speak in one sequence; longer texts
    are spoken in several. 30: upstream makes no speech tokens of longer recordings, neither for training (tools/extract_speech_token.py)
    nor for a prompt (cosyvoice/cli/frontend.py), and divides text into pieces of 60 to 80 tokens, some 20 s of speech.
    languages: lower-case ISO 639-1 codes of what the checkpoint speaks; empty: no restriction is known.
    can_be_instructed: whether ``instruct_text`` changes how it speaks; where not, the model would read it aloud.
    takes_labels: whether its language model makes voices of labels (``gender`` and others); its family alone says so.
    has_speed: whether its speech can be had faster or slower (``speed``); its family alone says so.
    title: what it is, for people; empty: a released checkpoint or one of somebody's own.
    unknown_marks: punctuation that its training text lacks; it is dropped before the model, which would stumble over it.
    """

    longest_utterance_s: float = 30.0
    languages: frozenset[str] = frozenset()
    can_be_instructed: bool = True
    title: str = ""
    unknown_marks: frozenset[str] = frozenset()
    takes_labels: bool = False
    has_speed: bool = True


def read_model_card(model_dir: str | Path) -> ModelCard:
    """Of a model directory, or ``""`` for a process without one. Raises ``CheckpointError`` for a file that cannot be understood."""
    path, family = Path(model_dir) / MODEL_CARD_FILE, family_of(model_dir)
    released = ModelCard(
        languages=family.languages,
        can_be_instructed=family.can_be_instructed,
        takes_labels=family.takes_labels,
        has_speed=not family.has_codec,
    )
    if not str(model_dir) or not path.is_file():
        return released
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")), released)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path.name} could not be understood ({error}); correct the file or remove it.") from error


def _parse(found: dict[str, Any], card: ModelCard) -> ModelCard:
    longest = float(found.get("longest_utterance_s", card.longest_utterance_s))
    if not 1.0 <= longest <= 600.0:
        raise ValueError(f"longest_utterance_s is {longest:g}, outside 1 to 600")
    languages = found.get("languages", sorted(card.languages))
    if not isinstance(languages, list) or not all(isinstance(one, str) and len(one) == 2 for one in languages):
        raise ValueError("languages is no list of two-letter codes")
    can_be_instructed = found.get("can_be_instructed", card.can_be_instructed)
    if not isinstance(can_be_instructed, bool):
        raise ValueError("can_be_instructed is neither true nor false")
    title = found.get("title", card.title)
    if not isinstance(title, str):
        raise ValueError("title is no text")
    marks = found.get("unknown_marks", "")
    if not isinstance(marks, str) or any(one.isalnum() or one.isspace() for one in marks):
        raise ValueError("unknown_marks has more than marks")
    spoken, unknown = frozenset(one.lower() for one in languages), frozenset(marks)
    return ModelCard(longest, spoken, can_be_instructed, title, unknown, card.takes_labels, card.has_speed)

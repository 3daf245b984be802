"""A rehearsal on a CPU: the carried files with a few sentences of held-out set A as the whole training text, to be learned by heart.

Shows in an hour, without a GPU, that every stage learns, that the export speaks, and which stage is at fault if it does not. The set is
no longer held out there: such a voice shows nothing else and is never shipped.

Example, after the stage prepare:  python -m training.rehearse --sentences 16
"""

from __future__ import annotations

import argparse
from pathlib import Path

from training.corpus import CHARACTERS_PER_HOUR
from training.heldout import sentences
from training.texts import write_texts
from training.voices import DEFAULT_VOICE, voice_named


def rehearsal_texts(count: int) -> list[tuple[str, str]]:
    """(kind, text): the first ``count`` sentences of set A. The first one comes twice: the language model is never trained on line 0."""
    chosen = sentences("a")[:count]
    return [("set a", text) for text in (chosen[0], *chosen)]


def make_folder(carried: Path, folder: Path, count: int) -> float:
    """Writes ``folder/carried``; returns the scale of the corpus at which the default voice speaks every line once."""
    target = folder / "carried"
    target.mkdir(parents=True, exist_ok=True)
    for path in carried.iterdir():
        if path.name != "texts.jsonl.xz" and not (target / path.name).exists():
            (target / path.name).symlink_to(path.resolve())
    texts = rehearsal_texts(count)
    write_texts(texts, target / "texts.jsonl.xz")
    characters = sum(len(text) for _, text in texts)
    return (characters - 1) / CHARACTERS_PER_HOUR / voice_named(DEFAULT_VOICE).hours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--carried", type=Path, default=Path("build/voice/carried"))
    parser.add_argument("--folder", type=Path, default=Path("build/rehearsal"))
    arguments = parser.parse_args()
    hours = make_folder(arguments.carried, arguments.folder, arguments.sentences)
    options = f"--folder {arguments.folder} --size rehearsal --voices {DEFAULT_VOICE} --hours {hours:.7f}"
    print(f"next: python training/make.py {options} --stage corpus")


if __name__ == "__main__":
    main()

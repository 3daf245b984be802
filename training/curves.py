"""The curves of losses: CSV files of ``loop.train`` as one PNG."""

from __future__ import annotations

import csv
from pathlib import Path

from training.stages import Work


def read_curve(path: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each loss."""
    found: dict[str, list[tuple[int, float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for step, *entries in csv.reader(file):
            for name, value in (entry.split("=") for entry in entries):
                found.setdefault(name, []).append((int(step), float(value)))
    return found


def draw_curves(work: Work) -> bool:
    """``curves.png`` beside the checkpoints."""
    import matplotlib  # noqa: PLC0415  (the training host may lack it)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    paths = sorted({*work.folders.local.glob("*.csv"), *work.folders.travel.glob("*.csv")})
    if not paths:
        raise FileNotFoundError(f"{work.folders.local} has no curves; train something first.")
    figure, axes = pyplot.subplots(len(paths), 1, figsize=(8, 3 * len(paths)), squeeze=False)
    for path, axis in zip(paths, axes[:, 0], strict=True):
        for name, points in read_curve(path).items():
            axis.plot(*zip(*points, strict=True), label=name)
        axis.set_title(path.stem)
        axis.set_xlabel("step")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(work.root / "curves.png", dpi=90)
    print(work.root / "curves.png")
    return True

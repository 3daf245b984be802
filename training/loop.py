"""One training loop for all networks: until the steps are done or the time is over, with checkpoints, and a curve of losses in CSV.

``NAME.pt`` has everything to continue exactly: float32 weights, optimizers, what only training needs (discriminators, decoders).
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

SAVE_EVERY_S = 120.0
LOG_EVERY = 50


class Task(Protocol):
    """A network in training. ``modules`` and ``optimizers`` are all that a checkpoint must hold; the module "network" is served."""

    name: str
    total_steps: int
    warmup_steps: int
    modules: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]

    def step(self, number: int) -> dict[str, Tensor]:
        """One update of everything; named losses, detached scalars."""


@dataclass(frozen=True)
class Curve:
    """The learning rate over steps, as a share of its peak: linear warm-up, cosine to ``floor``."""

    warmup: int
    total: int
    floor: float = 0.02

    def share(self, step: int) -> float:
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        progress = min(1.0, step / max(1, self.total))
        return rise * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def train(task: Task, folder: Path, deadline: float, quiet: bool = False) -> bool:
    """Train until ``deadline`` (of ``time.monotonic``) or the last step. Returns whether it was the last step."""
    folder.mkdir(parents=True, exist_ok=True)
    step = _load(task, folder)
    curve = Curve(task.warmup_steps, task.total_steps)
    peaks = {name: [group["lr"] for group in optimizer.param_groups] for name, optimizer in task.optimizers.items()}
    device = next(iter(task.modules.values())).parameters().__next__().device
    saved, began, first = time.monotonic(), time.monotonic(), step
    bar = tqdm(total=task.total_steps, initial=step, desc=task.name, unit="step", disable=quiet, mininterval=5.0)
    sums: dict[str, Tensor] = {}
    summed = 0
    with bar, (folder / f"{task.name}.csv").open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        while step < task.total_steps and time.monotonic() < deadline:
            share = curve.share(step)
            for name, optimizer in task.optimizers.items():
                for group, peak in zip(optimizer.param_groups, peaks[name], strict=True):
                    group["lr"] = peak * share
            for name, value in task.step(step).items():
                sums[name] = sums.get(name, torch.zeros((), device=device)) + value.float()
            step, summed = step + 1, summed + 1
            bar.update()
            if step % LOG_EVERY == 0:
                means = {name: float(value) / summed for name, value in sums.items()}
                _check_finite(task.name, means)
                writer.writerow([step, *(f"{name}={value:.5f}" for name, value in means.items())])
                file.flush()
                bar.set_postfix({name: f"{value:.3f}" for name, value in means.items()}, refresh=False)
                sums.clear()
                summed = 0
            if time.monotonic() - saved > SAVE_EVERY_S:
                _check_finite(task.name, sums)
                _save(task, folder, step, peaks)
                saved = time.monotonic()
    _check_finite(task.name, sums)
    _save(task, folder, step, peaks)
    taken = time.monotonic() - began
    print(f"{task.name}: step {step} of {task.total_steps}, {1000 * taken / max(1, step - first):.0f} ms a step", flush=True)
    return step >= task.total_steps


def _check_finite(name: str, losses: Mapping[str, float] | Mapping[str, Tensor]) -> None:
    """Before every save, or a checkpoint would be replaced by one of no use."""
    for loss, value in losses.items():
        if not math.isfinite(float(value)):
            raise FloatingPointError(
                f"{name}: the loss {loss} is {float(value)}; run the stage again: it goes on from the last checkpoint."
            )


def steps_done(folder: Path, name: str) -> int:
    """Of the newest checkpoint; 0 without one."""
    path = folder / f"{name}.pt"
    return int(_read(path)["step"]) if path.exists() else 0


def load_network(folder: Path, name: str, network: nn.Module) -> int:
    """The trained weights, rounded to float16 as they are exported; returns their step. Raises ``FileNotFoundError``."""
    path = folder / f"{name}.pt"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; run the stage {name} first.")
    state = _read(path)
    weights = state["modules"]["network"]
    network.load_state_dict({key: value.half().float() if value.is_floating_point() else value for key, value in weights.items()})
    return int(state["step"])


def _read(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return state


def _load(task: Task, folder: Path) -> int:
    """The step of the checkpoint that the task goes on from; 0: there is none."""
    path = folder / f"{task.name}.pt"
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, module in task.modules.items():
        module.load_state_dict(state["modules"][name])
    for name, optimizer in task.optimizers.items():
        optimizer.load_state_dict(state["optimizers"][name])
    return int(state["step"])


def _save(task: Task, folder: Path, step: int, peaks: Mapping[str, list[float]]) -> None:
    for name, optimizer in task.optimizers.items():  # a checkpoint has the peak rate, from which the next piece's schedule starts
        for group, peak in zip(optimizer.param_groups, peaks[name], strict=True):
            group["lr"] = peak
    state = {name: {key: part.state_dict() for key, part in getattr(task, name).items()} for name in ("modules", "optimizers")}
    partial = folder / f"{task.name}.partial"
    torch.save({"step": step, **state}, partial)
    partial.rename(folder / f"{task.name}.pt")


def adamw(parameters: Any, rate: float, betas: tuple[float, float], decay: float) -> torch.optim.AdamW:
    """Weight decay on matrices alone."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, betas=betas)


def update(loss: Tensor, optimizer: torch.optim.Optimizer, most_norm: float = 1.0) -> None:
    """Backward pass, clipped step, gradients cleared."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_([parameter for group in optimizer.param_groups for parameter in group["params"]], most_norm)
    optimizer.step()

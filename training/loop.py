"""One training loop for all networks: until the steps are done or the time is over, with checkpoints, and a curve of losses in CSV.

Two files keep a network. ``NAME.full.pt`` stays on the machine and continues exactly (float32, optimizers). ``NAME.pt`` travels: weights
in float16 and the number of steps; after it the optimizers begin anew and the learning rate rises again. What only training needs
(discriminators, decoders) travels until the last step.
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
_REWARM_STEPS = 100


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

    def share(self, step: int, resumed_at: int = 0) -> float:
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if resumed_at:
            rise = min(rise, (step - resumed_at + 1) / _REWARM_STEPS)
        progress = min(1.0, step / max(1, self.total))
        return rise * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class Folders:
    """local: full checkpoints and curves; travel: what is carried between machines."""

    local: Path
    travel: Path

    @classmethod
    def of(cls, work: Path) -> Folders:
        folders = cls(work / "local", work / "travel")
        for folder in (folders.local, folders.travel):
            folder.mkdir(parents=True, exist_ok=True)
        return folders


def train(task: Task, folders: Folders, deadline: float, quiet: bool = False) -> bool:
    """Train until ``deadline`` (of ``time.monotonic``) or the last step. Returns whether it was the last step."""
    step, resumed_at = _load(task, folders)
    curve = Curve(task.warmup_steps, task.total_steps)
    peaks = {name: [group["lr"] for group in optimizer.param_groups] for name, optimizer in task.optimizers.items()}
    device = next(iter(task.modules.values())).parameters().__next__().device
    saved, began, first = time.monotonic(), time.monotonic(), step
    bar = tqdm(total=task.total_steps, initial=step, desc=task.name, unit="step", disable=quiet, mininterval=5.0)
    sums: dict[str, Tensor] = {}
    summed = 0
    with bar, (folders.local / f"{task.name}.csv").open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        while step < task.total_steps and time.monotonic() < deadline:
            share = curve.share(step, resumed_at)
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
                _save(task, folders, step, peaks)
                saved = time.monotonic()
    _check_finite(task.name, sums)
    _save(task, folders, step, peaks)
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


def steps_done(folders: Folders, name: str) -> int:
    """Of the newest checkpoint; 0 without one."""
    for path in (folders.local / f"{name}.full.pt", folders.travel / f"{name}.pt"):
        if path.exists():
            return int(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["step"])
    return 0


def _load(task: Task, folders: Folders) -> tuple[int, int]:
    """(step, step at which the optimizers began anew; 0: they did not)."""
    full, carried = folders.local / f"{task.name}.full.pt", folders.travel / f"{task.name}.pt"
    device = next(iter(task.modules.values())).parameters().__next__().device
    if full.exists():
        state = torch.load(full, map_location=device, weights_only=True)
        for name, module in task.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in task.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        return int(state["step"]), 0
    if carried.exists():
        step = load_travel(carried, task.modules)
        return step, step
    return 0, 0


def load_travel(path: Path, modules: Mapping[str, nn.Module]) -> int:
    """Weights of the modules that the file has; returns its step. A module that the file lacks keeps its own."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, module in modules.items():
        if name in state["modules"]:
            own = module.state_dict()
            module.load_state_dict({key: value.to(own[key].dtype) for key, value in state["modules"][name].items()})
    return int(state["step"])


def _save(task: Task, folders: Folders, step: int, peaks: Mapping[str, list[float]]) -> None:
    modules = {name: module.state_dict() for name, module in task.modules.items()}
    for name, optimizer in task.optimizers.items():  # a checkpoint has the peak rate, from which the next piece's schedule starts
        for group, peak in zip(optimizer.param_groups, peaks[name], strict=True):
            group["lr"] = peak
    optimizers = {name: optimizer.state_dict() for name, optimizer in task.optimizers.items()}
    _write({"step": step, "modules": modules, "optimizers": optimizers}, folders.local / f"{task.name}.full.pt")
    travelling = {"network": modules["network"]} if step >= task.total_steps else modules
    halves = {name: {key: _half(value) for key, value in state.items()} for name, state in travelling.items()}
    _write({"step": step, "modules": halves}, folders.travel / f"{task.name}.pt")


def _half(value: Tensor) -> Tensor:
    return value.detach().cpu().half() if value.dtype == torch.float32 else value.detach().cpu()


def _write(state: dict[str, Any], path: Path) -> None:
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.rename(path)


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

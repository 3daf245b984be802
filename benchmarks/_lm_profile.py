"""Where the time of one step of the language model goes, kernel by kernel, from PyTorch's profiler. CUDA only."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # public, but not listed
from torch.profiler import ProfilerActivity, profile

from bistream.text2token.sequence import StepPlan
from bistream.text2token.step_runner import StepRunner

STEPS = 20
SHOWN = 14
NAME_WIDTH = 70


def print_profile(runner: StepRunner, plan: StepPlan, rows: int) -> None:
    """Microseconds and launches per step of the most expensive kernels; ``plan`` must have been run before."""
    for _ in range(3):
        runner.run(plan)()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            runner.run(plan)()
        torch.cuda.synchronize()
    times: dict[str, float] = defaultdict(float)
    launches: dict[str, int] = defaultdict(int)
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA:
            times[event.name] += event.time_range.elapsed_us() / STEPS
            launches[event.name] += 1
    total, number = sum(times.values()), sum(launches.values()) / STEPS
    print(f"{rows} rows: {total:.0f} us in {number:.0f} kernels and copies per step")
    for name in sorted(times, key=times.__getitem__, reverse=True)[:SHOWN]:
        print(f"{times[name]:9.1f} us {launches[name] / STEPS:6.1f} x  {name[:NAME_WIDTH]}")

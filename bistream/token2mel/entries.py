"""Tables of a flow's file: each key, its shape, and the parameter of the network that it becomes. Used by the ``weights`` of both flows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Entry:
    """One key of the file. Entries with the same parameter are stacked along their first dimension, in order.

    is_window: a convolution [out, in, kernel] that the network computes as ``layers.WindowLinear``.
    """

    key: str
    parameter: str
    shape: tuple[int, ...]
    is_window: bool = False


def parameters_of(state: Mapping[str, Tensor], entries: Iterable[Entry], device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """The network's parameters from the tensors of a file that has been checked, in ``dtype`` on ``device``."""
    parts: dict[str, list[Tensor]] = {}
    for entry in entries:
        tensor = state[entry.key]
        if entry.is_window:
            tensor = tensor.transpose(1, 2)
        parts.setdefault(entry.parameter, []).append(tensor.to(device, dtype))
    return {name: torch.cat(tensors).contiguous() for name, tensors in parts.items()}


def linear(key: str, parameter: str, out_size: int, in_size: int, bias: bool = True) -> Iterator[Entry]:
    """Weight [out, in] and bias [out] of ``nn.Linear``."""
    yield Entry(f"{key}.weight", f"{parameter}.weight", (out_size, in_size))
    if bias:
        yield Entry(f"{key}.bias", f"{parameter}.bias", (out_size,))


def conv(key: str, parameter: str, out_size: int, in_size: int, kernel: int) -> Iterator[Entry]:
    """Weight [out, in, kernel] and bias [out] of a ``layers.WindowLinear``."""
    yield Entry(f"{key}.weight", f"{parameter}.weight", (out_size, in_size, kernel), is_window=True)
    yield Entry(f"{key}.bias", f"{parameter}.bias", (out_size,))


def norm(key: str, parameter: str, size: int) -> Iterator[Entry]:
    """Weight and bias [size] of ``nn.LayerNorm``."""
    yield Entry(f"{key}.weight", f"{parameter}.weight", (size,))
    yield Entry(f"{key}.bias", f"{parameter}.bias", (size,))

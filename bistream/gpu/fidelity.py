"""What 16 bit costs a network: the signal-to-error ratio of its result against float32, and the largest numbers met on the way."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bistream.gpu.device import device_name
from bistream.store import findings
from bistream.store.fingerprint import Fingerprint, code_hash, files_hash, versions

logger = logging.getLogger(__name__)
CONVOLUTIONS = ("conv1d", "conv2d", "conv_transpose1d")
_WATCHED = ("linear", *CONVOLUTIONS)  # whose results a network keeps in its dtype
LEAST_RATIO_DB = {"logits": 20.0, "mel": 30.0, "audio": 30.0}  # random weights of full size: 34.9, 41 to 62 (not in hops), 55


@dataclass(frozen=True)
class Fidelity:
    """largest: magnitude met in float32; place: the weight that made it. ratio_db: minus infinity for what is not finite."""

    stage: str
    result: str  # logits | mel | audio
    dtype: torch.dtype
    ratio_db: float
    largest: float
    place: str

    @property
    def is_enough(self) -> bool:
        return self.ratio_db >= LEAST_RATIO_DB[self.result]

    @property
    def sentence(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        ratio = "none, NaN or infinity" if self.ratio_db == -math.inf else f"{self.ratio_db:.1f} dB"
        needed = f"at least {LEAST_RATIO_DB[self.result]:g} needed"
        reach = f"largest number {self.largest:.3g} at {self.place}, {name} reaches {torch.finfo(self.dtype).max:.3g}"
        return f"{self.stage} in {name}: signal-to-error ratio of the {self.result} {ratio}, {needed} ({reach})"

    def report(self) -> None:
        """To the log: what the server uses."""
        if self.is_enough:
            logger.info("%s", self.sentence)
        else:
            logger.warning("%s; so it runs in float32, which takes longer", self.sentence)


def measured_once(kind: str, facts: Fingerprint, measure: Callable[[], Sequence[Fidelity]]) -> list[Fidelity]:
    """What ``measure`` returns, or returned at an earlier start under the same facts."""
    if (kept := findings.recall(kind, facts)) is not None:
        try:
            known = [Fidelity(**{**one, "dtype": getattr(torch, one["dtype"])}) for one in kept]
        except (TypeError, KeyError, AttributeError):
            known = []
        if known:
            logger.info("what 16 bit costs was measured at an earlier start with this checkpoint, GPU and program")
            return known
    found = list(measure())
    findings.keep(kind, facts, [{**asdict(one), "dtype": str(one.dtype).removeprefix("torch.")} for one in found])
    return found


def facts_of(model_dir: str | Path, names: Iterable[str], device: torch.device, dtype: torch.dtype, **more: str) -> Fingerprint:
    """On what a measurement depends: these files (those that are there), where it is made, what makes it, and what else is told."""
    folder = Path(model_dir)
    files = files_hash(folder, [name for name in names if (folder / name).is_file()])
    return Fingerprint(
        {"files": files, "device": device_name(device), "dtype": str(dtype), "code": code_hash(), **versions("torch"), **more}
    )


def ratio_db(exact: Tensor, found: Tensor) -> float:
    """10 log10 of the energy of ``exact`` over that of the difference; infinite where they are equal."""
    exact, found = exact.double(), found.double()
    if not bool(found.isfinite().all()):
        return -math.inf
    error = float((found - exact).square().sum())
    return math.inf if error == 0.0 else 10.0 * math.log10(max(float(exact.square().sum()), 1e-300) / error)


class Ranges(TorchFunctionMode):
    """The largest result of a product with a weight inside the block."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._names = {tensor.data_ptr(): name for name, tensor in parameters}
        self.largest, self.place = 0.0, "none"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _WATCHED and result.numel():
            largest = float(result.abs().max())
            if largest > self.largest or math.isnan(largest):
                self.largest, self.place = largest, self._names.get(args[1].data_ptr(), "a product")
        return result


class RoundedConvolutions(TorchFunctionMode):
    """Convolutions as the 16-bit tiers compute them: inputs, weights and results rounded, sums in float32. Runs on every device.

    exact: weights of convolutions that stay in float32.
    """

    def __init__(self, dtype: torch.dtype, exact: Iterable[Tensor]) -> None:
        super().__init__()
        self._dtype = dtype
        self._exact = {tensor.data_ptr() for tensor in exact}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if getattr(func, "__name__", "") not in CONVOLUTIONS or args[1].data_ptr() in self._exact:
            return func(*args, **(kwargs or {}))
        signal, weight, *rest = args
        return self._round(func(self._round(signal), self._round(weight), *rest, **(kwargs or {})))

    def _round(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype).float()

"""What the keeper reads of a model repository, from each ``config.pbtxt`` as ``make_model_repo.py`` writes it: models and settings."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from pathlib import Path

_INSTANCES = re.compile(r"instance_group \[ \{ count: (\d+)")
_PARAMETER = re.compile(r'parameters \{ key: "(\w+)" value \{ string_value: "([^"]*)" \} \}')


def model_names(model_repository: Path) -> list[str]:
    return sorted(_texts(model_repository))


def read_parameters(model_repository: Path) -> dict[str, dict[str, str]]:
    """By model. Raises ``OSError``."""
    return {name: dict(_PARAMETER.findall(text)) for name, text in _texts(model_repository).items()}


def read_number(parameters: Mapping[str, str], name: str) -> float:
    """0 where it is missing or not a number: the model that reads it says so better."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(parameters.get(name, "0"))):
            return number
    return 0.0


def count_instances(model_repository: Path) -> int:
    """Processes of all models. Raises ``OSError``."""
    return sum(int(match[1]) if (match := _INSTANCES.search(text)) else 1 for text in _texts(model_repository).values())


def _texts(model_repository: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text(encoding="utf-8", errors="replace") for path in model_repository.glob("*/config.pbtxt")}

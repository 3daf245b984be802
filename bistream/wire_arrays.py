"""Values as [1, 1] arrays of the wire contract, for requests between models and the keeper's probes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMPY_TYPES: dict[str, type[np.generic]] = {  # by Triton's wire name
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
    "UINT8": np.uint8,
    "BYTES": np.object_,
}
Arrays = dict[str, NDArray[Any]]  # by input or output name


def text_array(value: str | bytes) -> NDArray[Any]:
    return np.array([[value.encode("utf-8") if isinstance(value, str) else value]], dtype=np.object_)


def scalar_array(value: bool | int | float, dtype: type[np.generic]) -> NDArray[Any]:
    return np.array([[value]], dtype=dtype)

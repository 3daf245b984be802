"""Tables of tensors from a file of ``torch.save``, as NumPy arrays and without torch, whose import would cost a server's first caller of a
preset voice 2 s of a core.

The file is a ZIP archive: ``NAME/data.pkl``, a pickle in which each tensor is a storage, an offset, a shape and strides, and
``NAME/data/KEY`` with the bytes of each storage. The unpickler knows tensors and nothing else, so no code of the file is run.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Little-endian, as every machine that we know of writes them.
_STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2",
    "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip


class UnknownContentError(Exception):
    """The file is another kind of archive, or holds more than plain tensors."""


def read_tensors(path: Path) -> Any:
    """What was saved, with an array in place of each tensor. Raises ``UnknownContentError``."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            root = next(name for name in names if name.endswith("/data.pkl")).removesuffix("data.pkl")
            if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
                raise UnknownContentError("it is big-endian")
            return _Unpickler(archive, root).load()
    except UnknownContentError:
        raise
    except Exception as error:  # a damaged pickle raises many exception types
        raise UnknownContentError(f"{type(error).__name__}: {error}") from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}data.pkl")))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):  # of a tensor's hooks
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch" and name in _STORAGES:
            return np.dtype(_STORAGES[name])
        raise UnknownContentError(f"it holds {module}.{name}")

    def persistent_load(self, pid: Any) -> NDArray[Any]:
        """pid: "storage", type, key, device, length."""
        _, dtype, key, _, length = pid
        return np.frombuffer(self._archive.read(f"{self._root}data/{key}"), dtype, length)


def _tensor(storage: NDArray[Any], offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any) -> NDArray[Any]:
    """strides: in elements."""
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 in shape:
        return np.zeros(shape, storage.dtype)
    if min((offset, *shape, *strides)) < 0 or last >= len(storage):
        raise UnknownContentError("a tensor is larger than its storage")
    bytes_of = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, bytes_of).copy()

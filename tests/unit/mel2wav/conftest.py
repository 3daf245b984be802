"""A small vocoder. One thread: the networks of these tests are too small to parallelise; more threads only wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bistream.config import RuntimeConfig
from tests.unit.mel2wav import tiny


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def config(tmp_path_factory: pytest.TempPathFactory) -> RuntimeConfig:
    return tiny.write_model(tmp_path_factory.mktemp("model"), tiny.random_state())

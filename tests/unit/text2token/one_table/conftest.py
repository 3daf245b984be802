"""A model directory of tiny size with random weights, and what is loaded of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bistream.checkpoints.one_table import OneTableConfig
from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.families.spark import SPARK
from bistream.text2token.factory import LanguageModelParts, load_parts
from scripts.make_checkpoint import make_checkpoint


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint") / "spark"
    make_checkpoint(directory, "tiny", family=SPARK.name)
    return directory


@pytest.fixture(scope="session")
def config(model_dir: Path) -> RuntimeConfig:
    return RuntimeConfig(model_dir=str(model_dir), device="cpu", max_sessions=8, kv_cache_tokens=16_000, drain_timeout_s=0.0)


@pytest.fixture(scope="session")
def sizes(model_dir: Path) -> OneTableConfig:
    found = read_config(model_dir).language_model
    assert isinstance(found, OneTableConfig)
    return found


@pytest.fixture(scope="session")
def model(config: RuntimeConfig) -> Iterator[LanguageModelParts]:
    loaded = load_parts(config)
    yield loaded
    loaded.close()

"""What is said in one sentence of an installed package that is missing, broken or different."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError, ConfigError
from bistream.text2token.factory import make_engine
from bistream.text2token.tensorrt_llm import preflight
from bistream.text2token.tensorrt_llm.contract import CONTRACT, PACKAGE, VERSION, Row
from tests.unit.text2token.tensorrt_llm import port

PLAIN_ROWS = tuple(row for row in CONTRACT if "_torch" not in row.module)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A package whose modules hold the port's classes. ``version`` and ``names`` (more or other classes) can be set."""
    state: dict[str, Any] = {"version": VERSION, "names": {}}

    def module(name: str) -> ModuleType:
        made = ModuleType(name)
        vars(made).update({**vars(port), **state["names"]})
        return made

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: state["version"])
    monkeypatch.setattr(importlib, "import_module", module)
    monkeypatch.setattr(preflight, "CONTRACT", PLAIN_ROWS)
    yield state


def sentence_of(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text and text.endswith(".") and len(text) < 700
    return text


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is not None, reason="tensorrt_llm is installed")
def test_a_package_that_is_missing(tiny_model_dir: Path) -> None:
    with pytest.raises(ConfigError, match=f"tensorrt_llm {VERSION}") as caught:
        make_engine(RuntimeConfig(engine="tensorrt_llm", model_dir=str(tiny_model_dir)))
    assert sys.executable in sentence_of(caught.value)


def test_a_missing_engine_dir_is_said_before_anything_is_imported(tiny_model_dir: Path, installed: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="'engine_dir' must name"):
        make_engine(RuntimeConfig(engine="tensorrt_llm", model_dir=str(tiny_model_dir)))


def test_a_package_that_fits(installed: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    preflight.check_signatures()
    assert not caplog.records


def test_another_version_that_fits_is_used_with_a_warning(installed: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    installed["version"] = "1.4.0"
    with caplog.at_level(logging.WARNING):
        preflight.check_signatures()
    assert "1.4.0" in caplog.text and VERSION in caplog.text


def test_a_package_that_does_not_fit(installed: dict[str, Any]) -> None:
    class Scheduler:
        def __init__(self, capacity_policy: object, owner: str) -> None: ...

    installed["names"] = {"SchedulerConfig": Scheduler}
    installed["version"] = "2.0.0"
    with pytest.raises(ConfigError) as caught:
        preflight.check_signatures()
    text = sentence_of(caught.value)
    assert "TensorRT-LLM 2.0.0 does not fit" in text and "SchedulerConfig takes no argument capacity_scheduler_policy" in text
    assert "and 0 more" not in text


def test_many_differences_are_counted(installed: dict[str, Any]) -> None:
    class Nothing: ...

    installed["names"] = {"KvCacheConfig": Nothing, "SamplingParams": Nothing}
    with pytest.raises(ConfigError, match=r"and \d+ more; install") as caught:
        preflight.check_signatures()
    sentence_of(caught.value)


def test_a_class_that_is_gone(installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Row("tensorrt_llm.llmapi", "LLM.generate_twice", "f.py", "LLM.generate_twice", "nowhere")
    monkeypatch.setattr(preflight, "CONTRACT", (gone,))
    with pytest.raises(ConfigError, match=r"tensorrt_llm\.llmapi has no LLM\.generate_twice"):
        preflight.check_signatures()


def test_a_package_that_cannot_be_imported(installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise OSError("libcuda.so.1: cannot open\nshared object file")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ConfigError, match="cannot be imported \\(OSError: libcuda"):
        preflight.check_signatures()


def test_a_package_without_metadata(installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert preflight.check_installed() == "unknown"

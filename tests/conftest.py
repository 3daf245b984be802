"""Fixtures shared by all tests."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import sys
from pathlib import Path

import pytest

# Images often forbid compiled files. Then every worker, and every process that a test starts, compiles hundreds of modules again: half the
# time of the collection. They are kept outside the source folders.
sys.dont_write_bytecode = False
sys.pycache_prefix = sys.pycache_prefix or str(Path(__file__).parents[1] / "build" / "pycache")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
# The cores are shared: a thread of PyTorch that waits for another one must not keep a core busy meanwhile.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

try:
    from hypothesis import settings
except ImportError:  # the tests on a GPU do without
    pass
else:
    # The same examples in every run, so that a change is judged by itself, and a quarter as many; BISTREAM_FUZZ=1 looks for new ones.
    settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=25)
    settings.register_profile("new", deadline=None)
    settings.load_profile("new" if os.environ.get("BISTREAM_FUZZ") == "1" else "repeatable")

pytest_plugins = ["tests.triton.recording"]  # has options, which pytest wants at the root of the tests

HANG_S = 240.0
gc.disable()


def pytest_collection_finish() -> None:
    """All modules and tests stay: the garbage collector need not look at them again and again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in a loop of its own: of asyncio, or as ``run_coroutine`` of its module does it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    coroutine = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters})
    run = getattr(pyfuncitem.module, "run_coroutine", None)
    if run is None:
        asyncio.run(asyncio.wait_for(coroutine, HANG_S))
    else:
        run(coroutine)
    return True


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model directory, read only. Every process of a parallel run makes its own, in a fraction of a second."""
    return _make_tiny(tmp_path_factory, "cosyvoice2")


@pytest.fixture(scope="session")
def brief_model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but its language model soon ends, as trained ones do: random weights speak until they are cut."""
    import torch  # noqa: PLC0415

    directory = Path(shutil.copytree(tiny_model_dir, tmp_path_factory.mktemp("checkpoint") / "brief"))
    state = torch.load(directory / "llm.pt", weights_only=True)
    state["llm_decoder.bias"][-3] += 8.0  # eos
    torch.save(state, directory / "llm.pt")
    return directory


@pytest.fixture(scope="session")
def tiny_cosyvoice3_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the other family."""
    return _make_tiny(tmp_path_factory, "cosyvoice3")


@pytest.fixture(scope="session")
def tiny_spark_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the family without a flow."""
    return _make_tiny(tmp_path_factory, "spark")


def _make_tiny(tmp_path_factory: pytest.TempPathFactory, family: str) -> Path:
    from scripts.make_checkpoint import make_checkpoint  # noqa: PLC0415  (most tests do not need torch)

    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    make_checkpoint(directory, "tiny", seed=0, family=family)
    return directory

"""Real servers for the tests: one that streams, shared by most tests, and one that answers offline and keeps little.

Starts of servers and speech are most of the time of these tests: a test has a server of its own only where its settings or its end leave no
choice, and the language models of most end soon (``brief_model_dir``).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest._code.code import ExceptionRepr
from numpy.typing import NDArray
from xdist.scheduler import LoadScopeScheduling

from bistream.keeper.server_process import ServerSettings, TritonServer
from bistream.keeper.server_start import start_server
from scripts.fill_template import placeholders
from scripts.make_model_repo import make, model_names, model_values, read_template
from tests.sounds import speech_like

ROOT = Path(__file__).resolve().parents[2]
TRITON_SERVER = Path(os.environ.get("TRITON_SERVER", ROOT / "build/triton/wheel/pytriton/tritonserver/bin/tritonserver"))
TRITON_BACKENDS = Path(os.environ.get("TRITON_BACKENDS", ROOT / "build/triton/backends"))
# Small enough for tests to reach every limit.
LIMITS = {
    "max_sessions": "6",
    "cosyvoice2_bistream.max_sessions": "3",
    "cosyvoice2_bistream.max_text_chars": "400",
    "num_threads": "1",
    "max_session_tokens": "2048",
    "drain_timeout_s": "1",
    "session_idle_timeout_s": "300",  # a session waits for its test, however slow the machine is; those about silence set another one
    "admission_load": "0",  # what a busy test machine can do decides no test; test_cosyvoice3.py sets both numbers
}
IDLE_TIMEOUT_S = 15.0  # of the server that keeps little: only hoarders may reach it, also where a busy machine is slow to speak
MOST_CHARS = 12_000
PATIENCE_S = 240.0  # for anything that happens on a working server; of a broken one, whose test fails after it
PROBE_TIMEOUT_S = WAIT_TIMEOUT_S = PATIENCE_S
LAST_LINES = 40
START_TIMEOUT_S = 600.0  # of a server whose six models share one core with others


# Tests of one server are a group, which one worker runs, so that each server starts once; the others are a group for each file. xdist needs
# it before there are fixtures, so it goes by files; tests of the offline server in other files have it in their names.
GROUPS = {
    "busy": "contents deaths hangs long_inputs soak stop_in_use",
    "hostile": "random_inputs timeouts unread",
    "streaming": "bad_input benchmarks client_example gate heavy_requests interfaces manners metrics sessions voice_batches",
    "offline": "session_rules voice_hashes",
}
# Are begun first, the longest ones before the others.
LONG = ("busy", "hostile", "streaming", "test_serve_gpus", "test_serve_gate", "offline", "test_cosyvoice3", "test_spark", "test_serve_all")
FIXTURES = {"hostile": "hostile", "busy": "busy", "offline_server": "offline", "server": "streaming"}


def group_of(nodeid: str) -> str:
    path, _, test = nodeid.partition("::")
    name = Path(path).stem
    group = next((group for group, files in GROUPS.items() if name.removeprefix("test_") in files.split()), name)
    return "offline" if group == "streaming" and "offline" in test else group


class ByServer(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServer | None:
    """In place of xdist's own ``loadgroup``, which leaves the groups out with pytest 9."""
    return ByServer(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.triton)
        used = {group for fixture, group in FIXTURES.items() if fixture in getattr(item, "fixturenames", ())}
        if used - {group_of(item.nodeid)}:
            raise pytest.UsageError(f"{item.nodeid} uses the server of {used}; put it into this group of tests/triton/conftest.py")
    first = [*LONG, *sorted({group_of(item.nodeid) for item in ours} - set(LONG))]
    ours.sort(key=lambda item: first.index(group_of(item.nodeid)))
    items[:] = [item for item in items if Path(__file__).parent not in item.path.parents] + ours


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what servers and gates have said meanwhile: a client alone cannot tell why one of them does not answer."""
    report = yield
    if report.failed and isinstance(report.longrepr, ExceptionRepr):
        for name, lines in last_lines(item.config._tmp_path_factory.getbasetemp(), call.start).items():  # type: ignore[attr-defined]
            report.longrepr.addsection(name, lines)
    return report


def last_lines(folder: Path, since: float) -> dict[str, str]:
    """Of the logs below it that were written since then (``time.time()``), by name."""
    logs = sorted(path for path in folder.rglob("*.log") if path.stat().st_mtime >= since)
    tails = ((path, path.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]) for path in logs)
    return {str(path.relative_to(folder)): "\n".join(lines) for path, lines in tails}


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    assert TRITON_SERVER.is_file(), f"{TRITON_SERVER} does not exist; run: bash run.sh setup"


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """Poll until ``condition`` holds, more and more slowly: a look at all processes ten times a second delays the start that it waits for.
    Fails the test after ``timeout_s``."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.02
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)
        pause_s = min(1.05 * pause_s, 0.25)


def server_settings(repository: Path, log_path: Path) -> ServerSettings:
    return ServerSettings(
        model_repository=repository,
        executable=TRITON_SERVER,
        backend_directory=TRITON_BACKENDS,
        start_timeout_s=START_TIMEOUT_S,
        exit_timeout_s=10.0,
        log_path=log_path,
    )


def make_repository(folder: Path, model_dir: Path, models: list[str] | None = None, **settings: str) -> Path:
    """``settings`` as for ``make_model_repo.py --set``, over ``LIMITS``."""
    chosen = models or model_names(model_dir)
    limits = {key: value for key, value in LIMITS.items() if "." not in key or key.partition(".")[0] in chosen}
    usable = {key: value for key, value in limits.items() if "." in key or any(key in placeholders(read_template(name)) for name in chosen)}
    make(folder / "model_repo", model_values(chosen, {**usable, **settings, "model_dir": str(model_dir)}, "torch"))
    return folder / "model_repo"


def serve(folder: Path, model_dir: Path, **settings: str) -> Generator[TritonServer, None, None]:
    repository = make_repository(folder, model_dir, None, **settings)
    server = start_server(server_settings(repository, folder / "server.log"), PROBE_TIMEOUT_S)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, brief_model_dir: Path) -> Iterator[TritonServer]:
    """All models; ``cosyvoice2`` streams. It marks on request."""
    yield from serve(tmp_path_factory.mktemp("streaming"), brief_model_dir, watermark="on_request")


@pytest.fixture(scope="session")
def offline_server(tmp_path_factory: pytest.TempPathFactory, brief_model_dir: Path) -> Iterator[TritonServer]:
    """All models; ``cosyvoice2`` answers once. It takes long texts, remembers one voice at a time, and waits seconds for text."""
    settings = {"voice_cache_size": "1", "session_idle_timeout_s": str(IDLE_TIMEOUT_S)}
    settings |= dict.fromkeys(("cosyvoice2_bistream.max_text_chars", "llm_bistream.max_text_chars"), str(MOST_CHARS))
    yield from serve(tmp_path_factory.mktemp("offline"), brief_model_dir, **settings, **{"cosyvoice2.decoupled_mode": "False"})


@pytest.fixture(scope="session")
def grpc_url(server: TritonServer) -> str:
    return server.grpc_url


@pytest.fixture(scope="session")
def reference_wav() -> NDArray[np.float32]:
    """One second of a voice-like sound, float32 [1, 16000]."""
    return speech_like().reshape(1, -1)


@pytest.fixture(scope="session")
def voice(reference_wav: NDArray[np.float32]) -> dict[str, Any]:
    """The voice inputs of a start."""
    return {"reference_wav": reference_wav, "reference_wav_len": reference_wav.size, "reference_text": "A reference."}


@pytest.fixture
def broken_model_dir(tmp_path: Path, tiny_model_dir: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "broken"))

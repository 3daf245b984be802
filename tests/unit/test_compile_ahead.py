"""Kernels compiled in many processes before they are launched, with a stand-in for Triton (its hook, its cache, ``preload``): no GPU here.

What real Triton does with the same calls was tried by hand: all kernels of CosyVoice2 at full size were compiled for Hopper on a CPU, with
Triton 3.6, and found in its cache afterwards (docs/log/server.md).
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILES = {
    "triton/__init__.py": "from triton import knobs, runtime\n",
    "triton/knobs.py": (
        "import os\n"
        "class _Runtime: jit_cache_hook = None\n"
        "class _Cache:\n"
        "    @property\n"
        "    def dir(self): return os.environ['TRITON_CACHE_DIR']\n"
        "runtime, cache = _Runtime(), _Cache()\n"
    ),
    "triton/runtime/__init__.py": (
        "class _Driver:\n    active = None\n    def set_active(self, one): self.active = one\ndriver = _Driver()\n"
    ),
    "triton/backends/__init__.py": "",
    "triton/backends/compiler.py": (
        "class GPUTarget:\n"
        "    def __init__(self, backend, arch, warp_size): self.backend, self.arch, self.warp_size = backend, arch, warp_size\n"
        "    def __str__(self): return f'{self.backend}:{self.arch}'\n"
    ),
    # A kernel compiles at its first launch, into the cache, where it is found under a hash that depends on the kernels hashed before; the
    # hook may leave a launch out.
    "some_kernels.py": (
        "import os, pathlib, types, triton\n"
        "hashed = []\n"
        "class Kernel:\n"
        "    def __init__(self, name): self.name, self.launched = name, []\n"
        "    @property\n"
        "    def cache_key(self):\n"
        "        if self.name not in hashed: hashed.append(self.name)\n"
        "        return f'{self.name}.{hashed.index(self.name)}'\n"
        "    def __getitem__(self, grid):\n"
        "        def launch(size):\n"
        "            hook = triton.knobs.runtime.jit_cache_hook\n"
        "            fn = types.SimpleNamespace(module='some_kernels', name=self.name)\n"
        "            if hook and hook(key=f'k{size}', repr='', fn=fn, compile={'specialization_data': str(size)}, is_manual_warmup=False,\n"
        "                             already_compiled=False):\n"
        "                return None\n"
        "            self.launched.append(size)\n"
        "            self.preload(str(size))\n"
        "            return self\n"
        "        return launch\n"
        "    def preload(self, description):\n"
        "        folder = pathlib.Path(triton.knobs.cache.dir)\n"
        "        target = triton.runtime.driver.active.get_current_target()\n"
        "        if self.name == 'dies': os._exit(3)\n"
        "        if self.name == 'wrong': raise TypeError('no such\\n  layout ' + 'x' * 1000)\n"
        "        folder.mkdir(exist_ok=True)\n"
        "        if not list(folder.glob(f'{self.cache_key}-{description}-{target}-*')):\n"
        "            (folder / f'{self.cache_key}-{description}-{target}-{os.getpid()}').touch()\n"
        "first, second, third, wrong, dies = map(Kernel, ('first', 'second', 'third', 'wrong', 'dies'))\n"
    ),
}


class Device:
    def get_current_target(self) -> Any:
        return sys.modules["triton.backends.compiler"].GPUTarget("cuda", 90, 32)


@pytest.fixture
def ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``bistream.gpu.compile_ahead`` with the stand-in, here and in the worker processes."""
    for name, text in FILES.items():
        path = tmp_path / "stand-in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand-in"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "stand-in")
    before = set(sys.modules)
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("triton.backends.compiler")
    sys.modules["triton"].runtime.driver.set_active(Device())
    yield importlib.import_module("bistream.gpu.compile_ahead")
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("triton", "some_kernels") or name.startswith("bistream.gpu.compile_"):
            del sys.modules[name]
    for name in ("compile_ahead", "compile_worker"):
        vars(sys.modules["bistream.gpu"]).pop(name, None)


@pytest.fixture
def kernels(ahead: ModuleType) -> ModuleType:
    return importlib.import_module("some_kernels")


def compiled(tmp_path: Path) -> list[tuple[str, str, str, int]]:
    """Kernel, description, target and process of each compilation."""
    names = [path.name for path in (tmp_path / "cache").glob("*-*-*-*") if path.suffix != ".compiled"]
    parts = (name.split("-") for name in names)
    return sorted((key.partition(".")[0], description, target, int(process)) for key, description, target, process in parts)


def test_every_kernel_is_compiled_once_elsewhere_and_none_runs(ahead: ModuleType, kernels: ModuleType, tmp_path: Path) -> None:
    def launch() -> None:
        for size in (1, 2, 3, 2, 1):
            assert kernels.first[(8,)](size) is None, "left out"
        kernels.second[(8,)](1)

    ahead.compile_ahead("flow", launch, {"sizes": "1"})
    found = compiled(tmp_path)
    assert [one[:3] for one in found] == [
        (*names, "cuda:90") for names in (("first", "1"), ("first", "2"), ("first", "3"), ("second", "1"))
    ]
    assert os.getpid() not in {one[3] for one in found}
    assert not kernels.first.launched and kernels.first[(8,)](1) is kernels.first, "afterwards it launches"


def test_what_was_compiled_is_found_at_the_launch(ahead: ModuleType, kernels: ModuleType, tmp_path: Path) -> None:
    """Whatever was hashed before: workers know the order of this process, and so do later starts."""
    flow = [kernels.second, kernels.first]
    vocoder = [kernels.third, kernels.second]
    for stage in (flow, vocoder):
        ahead.compile_ahead(stage[0].name, lambda stage=stage: [kernel[(8,)](1) for kernel in stage], {})
    assert kernels.hashed == ["second", "first", "third"]
    found = compiled(tmp_path)
    for kernel in (kernels.third, kernels.first, kernels.second):
        kernel[(8,)](1)
    assert compiled(tmp_path) == found and len(found) == 3
    kernels.hashed.clear()  # another start
    ahead._hashed.clear()
    for stage in (flow, vocoder):
        ahead.compile_ahead(stage[0].name, lambda: pytest.fail("nothing is launched"), {})
    for kernel in (kernels.first, kernels.third, kernels.second):
        kernel[(8,)](1)
    assert compiled(tmp_path) == found


def test_a_second_start_with_the_same_facts_launches_nothing(ahead: ModuleType, kernels: ModuleType, tmp_path: Path) -> None:
    counted = []

    def launch() -> None:
        counted.append(1)
        kernels.first[(8,)](1)

    for facts in ({"sizes": "1"}, {"sizes": "1"}, {"sizes": "2"}):
        ahead.compile_ahead("flow", launch, facts)
    ahead.compile_ahead("vocoder", launch, {"sizes": "1"})
    assert len(counted) == 3
    shutil.rmtree(tmp_path / "cache")
    ahead.compile_ahead("flow", launch, {"sizes": "1"})
    assert len(counted) == 4 and len(compiled(tmp_path)) == 1, "an emptied cache is filled again"


def test_of_several_servers_one_compiles(ahead: ModuleType, kernels: ModuleType, tmp_path: Path) -> None:
    """Real processes with one cache: the others wait for it, and launch nothing."""
    code = (
        "import sys, some_kernels, triton, triton.backends.compiler\n"
        "from bistream.gpu import compile_ahead\n"
        "class Device:\n"
        "    def get_current_target(self): return triton.backends.compiler.GPUTarget('cuda', 90, 32)\n"
        "triton.runtime.driver.set_active(Device())\n"
        "def launch():\n"
        "    print('launches', flush=True)\n"
        "    for size in range(6): some_kernels.first[(8,)](size)\n"
        "compile_ahead.compile_ahead('flow', launch, {})\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{Path(ahead.__file__ or '').parents[2]}:{os.environ['PYTHONPATH']}"}
    servers = [subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [server.communicate(timeout=120)[0] for server in servers]
    assert sorted(said) == ["", "", "launches\n"] and not any(server.returncode for server in servers)
    assert len(compiled(tmp_path)) == 6


def test_what_fails_is_left_to_its_launch(ahead: ModuleType, kernels: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def launch() -> None:
        for kernel in (kernels.wrong, kernels.first):
            kernel[(8,)](1)

    for _ in range(2):
        caplog.clear()
        ahead.compile_ahead("flow", launch, {})
        (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert "flow: 1 kernels are compiled at their launch (wrong: TypeError: no such layout xx" in warning and len(warning) < 400
    assert {one[0] for one in compiled(tmp_path)} == {"first"}


def test_a_worker_that_dies_loses_its_kernel_alone(ahead: ModuleType, kernels: ModuleType, tmp_path: Path) -> None:
    wanted = ahead.wanted_by(lambda: [kernel[(8,)](size) for kernel in (kernels.dies, kernels.first) for size in (1, 2)])
    failures = ahead.compile_all(wanted, ["cuda", "90", "32"], workers=3)
    assert sorted(failures) == ["dies: its process has ended"] * 2
    assert [one[:2] for one in compiled(tmp_path)] == [("first", "1"), ("first", "2")]
    failures = ahead.compile_all(wanted, ["cuda", "90", "32"], workers=1)
    assert sorted(failures) == [
        "dies: its process has ended",
        "dies: no process was left for it",
        *["first: no process was left for it"] * 2,
    ]


def test_a_launch_that_fails_leaves_the_hook_as_it_was(ahead: ModuleType) -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        ahead.wanted_by(fail)
    assert ahead.knobs.runtime.jit_cache_hook is None

"""The package as others install it: a wheel, built here and installed into an empty environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import grpc
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENT_CODE = """
import sys
from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.client import BistreamClient
assert not {"torch", "onnxruntime"} & set(sys.modules)
print(BistreamClient.__module__)
"""


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel alone; the clients' packages are added by their path."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("bistream", "gateway", "interfaces", "requirements"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools.build_meta import build_wheel; import sys; sys.stderr.write(build_wheel('wheel'))"
    run(sys.executable, "-c", build, cwd=folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    (wheel,) = folder.glob("wheel/bistream-*.whl")
    (site,) = folder.glob("venv/lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return folder / "venv"


COMMAND = """
import sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="bistream")
sys.exit(command.load()())
"""


def test_the_command_works_without_any_other_package(environment: Path, tmp_path: Path) -> None:
    command = [str(environment / "bin/python"), "-c", COMMAND]
    assert "say" in run(*command, "help", cwd=tmp_path)
    done = subprocess.run([*command, "say", "Hello."], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert "pip install '.[client]'" in done.stderr and "Traceback" not in done.stderr


def test_an_installation_without_extras_has_what_the_clients_need(environment: Path, tmp_path: Path) -> None:
    code = "from importlib.metadata import requires; print(*(one for one in requires('bistream') if 'extra ==' not in one), sep='\\n')"
    needed = run(environment / "bin/python", "-c", code, cwd=tmp_path).splitlines()
    assert sorted(re.split(r"\W", one)[0] for one in needed) == ["numpy", "soundfile", "tritonclient"]


def test_the_clients_work_from_anywhere(environment: Path, tmp_path: Path) -> None:
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{Path(grpc.__file__).parents[1]}\n", encoding="utf-8")
    try:
        assert run(environment / "bin/python", "-c", CLIENT_CODE, cwd=tmp_path).strip() == "bistream.client.client"
        assert "--reference-audio" in run(environment / "bin/python", "-c", COMMAND, "say", "--help", cwd=tmp_path)
    finally:
        (site / "others.pth").unlink()

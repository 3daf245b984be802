"""The package as others install it: a wheel, built here and installed into an empty environment."""

from __future__ import annotations

import re
import subprocess
import sys
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
    source = folder / "source"
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", cwd=ROOT).splitlines():
        if (ROOT / name).is_file() and name.partition("/")[0] not in ("assets", "tests"):  # 100 MB
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source, cwd=folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    (wheel,) = folder.glob("bistream-*.whl")
    run(*pip, "--python", folder / "venv/bin/python", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder / "venv"


def test_the_command_works_without_any_other_package(environment: Path, tmp_path: Path) -> None:
    assert "say" in run(environment / "bin/bistream", "help", cwd=tmp_path)
    done = subprocess.run([environment / "bin/bistream", "say", "Hello."], cwd=tmp_path, capture_output=True, text=True, timeout=240)
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
        assert "--reference-audio" in run(environment / "bin/bistream", "say", "--help", cwd=tmp_path)
    finally:
        (site / "others.pth").unlink()

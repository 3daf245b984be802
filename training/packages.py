"""Debian packages of the teachers and texts: download, unpack, and one small archive of what the teachers need on another host.

Downloads go through ``apt-get download`` (Debian 12). The archive holds programs, libraries and voices, with their licences.
"""

from __future__ import annotations

import lzma
import subprocess
import tarfile
import tempfile
from pathlib import Path

from training.teachers import FESTIVAL_DATA, LIBRARIES

TEACHERS = (
    "flite libflite1 festival libestools2.5 festvox-us-slt-hts festvox-kdlpc16k festlex-cmu festlex-poslex libasound2 libgomp1 libtinfo6"
).split()
TEXTS = ("wordnet-base", "scowl")
# Voices and languages of flite on which nothing is trained
_UNUSED = ("grapheme", "indic", "time_awb", "us_awb", "us_kal")
# festival needs a sound library to start, and never plays here
_STUB = "void *pa_simple_new(void){return 0;} int pa_simple_write(void){return -1;} int pa_simple_drain(void){return -1;} "
_STUB += "void pa_simple_free(void){}\n"
_STUB_SYMBOLS = "PULSE_0 { global: pa_simple_*; local: *; };\n"


def download(packages: tuple[str, ...] | list[str], folder: Path) -> None:
    """Into ``folder``, those that are missing. Raises ``CalledProcessError``."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in packages if not list(folder.glob(f"{name}_*.deb"))]
    if missing:
        subprocess.run(["apt-get", "-q", "download", *missing], cwd=folder, check=True)


def unpack(folder: Path, root: Path) -> None:
    """All packages of ``folder`` into ``root``, and the stub of the sound library."""
    for package in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    _make_stub(root / LIBRARIES / "libpulse-simple.so.0")


def _make_stub(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        source, symbols = Path(name, "stub.c"), Path(name, "stub.map")
        source.write_text(_STUB)
        symbols.write_text(_STUB_SYMBOLS)
        options = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}", f"-Wl,--version-script={symbols}"]
        subprocess.run(["cc", *options, str(source), "-o", str(path)], check=True)


def pack(root: Path, archive: Path) -> None:
    """What the teachers need of ``root``, as a .tar.xz."""
    with lzma.open(archive, "wb", preset=6) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            if (path.is_file() or path.is_symlink()) and _is_needed(path.relative_to(root).as_posix()):
                tar.add(path, path.relative_to(root).as_posix(), recursive=False)


def _is_needed(name: str) -> bool:
    if name.startswith(f"{LIBRARIES}/"):
        return ".so" in name and not any(part in name for part in _UNUSED)
    return name.startswith((f"{FESTIVAL_DATA}/", "usr/bin/festival")) or name.endswith("/copyright")


def extract(archive: Path, root: Path) -> None:
    """``pack``'s archive into ``root``; needs neither dpkg nor a compiler."""
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(root, filter="data")

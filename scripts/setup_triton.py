#!/usr/bin/env python3
"""Installs the Triton server of the nvidia-pytriton wheel into a folder of its own, ready for scripts/serve.py.

    setup_triton.py build/triton
    setup_triton.py --check          only checks that the loader finds this Python's library, which the backend's stub needs

makes build/triton/wheel (the server, no Python dependencies) and build/triton/backends (the Python backend with the stub for
this Python; symlinks, because the stub finds its libraries relative to its real path). Completed steps are skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.keeper.host import ServerError, library_directories

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements" / "triton.txt"


def install_wheel(wheel: Path) -> None:
    if (wheel / "pytriton" / "tritonserver" / "bin" / "tritonserver").is_file():
        print(f"have {wheel}")
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(wheel), "--requirement"]
    subprocess.run([*command, str(REQUIREMENTS)], check=True)
    print(f"made {wheel}")


def link_backend(wheel: Path, backends: Path) -> None:
    """``backends/python`` with links to the backend, its Python module and the stub of this interpreter's version."""
    triton = wheel / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise ServerError(f"The Triton wheel has no stub for Python {version}; use Python 3.11.")
    stub.chmod(0o755)
    folder = backends / "python"
    folder.mkdir(parents=True, exist_ok=True)
    for source in [*sorted((triton / "backends" / "python").iterdir()), stub]:
        link = folder / source.name
        if not link.is_symlink() or link.resolve() != source.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(source.resolve())
    print(f"made {backends} (Python {version})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where to put the server")
    parser.add_argument("--check", action="store_true", help="only check the system")
    options = parser.parse_args()
    if options.folder is None and not options.check:
        parser.error("give the folder, or --check")
    try:
        library_directories()
        if options.check:
            return 0
        install_wheel(options.folder / "wheel")
        link_backend(options.folder / "wheel", options.folder / "backends")
    except (ServerError, OSError, subprocess.CalledProcessError) as error:
        print(f"setup_triton.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A judge in a process of the judges' environment (``judges/__main__.py``): sounds in, scores out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import bistream
from bistream.errors import EngineError

DEFAULT_PYTHON = Path("build/judges/bin/python")  # that `bash run.sh judges` makes
IN_OUR_ENVIRONMENT = ("campplus",)
WANTED = ("whisper=base", "dnsmos", "speaker", "campplus")  # where nothing else is said
NAMES = ("whisper", "paraformer", "dnsmos", "speaker", "campplus")


@dataclass(frozen=True)
class JudgeChoice:
    """model: what the judge's module takes for one."""

    name: str
    model: str = ""


class JudgeProcess:
    """A context manager. unavailable: why the judge cannot judge; empty where it can. packages: with which versions it does.

    Its environment sees nothing of ours but the package ``bistream``, through a link: the versions of others' packages differ.
    """

    def __init__(self, choice: JudgeChoice, python: Path) -> None:
        """Raises ``OSError`` where there is no such Python."""
        self.name = choice.name
        self._links = tempfile.TemporaryDirectory(prefix="bistream_judge_")
        (Path(self._links.name) / "bistream").symlink_to(Path(bistream.__file__).resolve().parent)
        interpreter = sys.executable if choice.name in IN_OUR_ENVIRONMENT else str(python)
        command = [interpreter, "-m", "bistream.evaluation.judges", choice.name, choice.model]
        environment = {**os.environ, "PYTHONPATH": self._links.name}
        try:
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError:
            self._links.cleanup()
            raise
        first = self._answer()
        self.unavailable: str = first.get("unavailable", "")
        self.packages: dict[str, str] = first.get("packages", {})

    def judge(self, path: Path, text: str, language: str, **wishes: Any) -> dict[str, Any]:
        """Scores of a WAV file. Raises ``EngineError`` where the judge has ended."""
        return self._ask({"path": str(path), "text": text, "language": language, **wishes})

    def cost(self) -> dict[str, float]:
        """Ends the judge; seconds of processor and megabytes that it took. Raises ``EngineError``."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._answer()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # there is no answer either
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise EngineError(f"The judge {self.name} has ended; the lines above say why.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> JudgeProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what was not sent
                pipe.close()
        self._links.cleanup()

"""The budgets of ``scripts/size_report.py``; only kernels are exempt from the type check."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.size_report import FOLDERS, ROOT, is_kernel, report, sources

UNTYPED = "# mypy: ignore-errors"
KERNEL, MODEL, MODULE = "bistream/gpu/new.py", "model_repo/new/1/model.py", "gateway/new.py"


def write(root: Path, name: str, file_lines: int, function_lines: int, decorator: str = "") -> None:
    """A file of ``file_lines``, among them a function of ``function_lines``."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [*decorator.split(), "def long():", *["    pass"] * (function_lines - 1)]
    path.write_text("\n".join(lines + ["x = 1"] * (file_lines - len(lines))), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "decorator", "file_lines", "function_lines"),
    [(KERNEL, "@triton.jit", 400, 100), (KERNEL, "@gluon.jit(noinline=True)", 400, 100), (MODEL, "", 200, 60), (MODULE, "@cache", 300, 60)],
)
def test_budgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, decorator: str, file_lines: int, function_lines: int
) -> None:
    write(tmp_path, name, file_lines, function_lines, decorator)
    assert report(tmp_path, {})
    write(tmp_path, name, file_lines + 1, function_lines, decorator)
    assert not report(tmp_path, {})
    assert f"{name}: {file_lines + 1} lines, budget {file_lines}: OVER BUDGET" in capsys.readouterr().out
    write(tmp_path, name, file_lines, function_lines + 1, decorator)
    assert not report(tmp_path, {})
    assert f"{name}:long: {function_lines + 1} lines, budget {function_lines}: OVER BUDGET" in capsys.readouterr().out


def test_a_function_that_launches_a_kernel_has_the_usual_budget(tmp_path: Path) -> None:
    write(tmp_path, KERNEL, 100, 60)
    path = tmp_path / KERNEL
    path.write_text(path.read_text(encoding="utf-8") + "\n@triton.jit\ndef kernel():\n    pass\n", encoding="utf-8")
    assert report(tmp_path, {})
    path.write_text(path.read_text(encoding="utf-8").replace("def long():", "def long():\n    pass"), encoding="utf-8")
    assert not report(tmp_path, {})


def test_a_reason_allows_what_it_names_and_must_be_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, MODULE, 301, 61)
    assert not report(tmp_path, {MODULE: "a table"})
    reasons = {MODULE: "a table", f"{MODULE}:long": "a list of options"}
    assert report(tmp_path, reasons)
    assert f"{MODULE}:long: 61 lines, budget 60: a list of options" in capsys.readouterr().out
    write(tmp_path, MODULE, 300, 61)
    assert not report(tmp_path, reasons)
    assert f"{MODULE}: within its budget" in capsys.readouterr().out


def test_tests_have_no_budget(tmp_path: Path) -> None:
    write(tmp_path, "tests/unit/test_new.py", 1000, 200)
    assert report(tmp_path, {})


def test_kernels_and_only_kernels_are_left_out_of_the_type_check() -> None:
    for folder in FOLDERS:
        for path in sources(ROOT, folder):
            untyped = UNTYPED in path.read_text(encoding="utf-8").splitlines()
            assert untyped == is_kernel(path), f"{path}: kernels have {UNTYPED!r}, other modules do not"

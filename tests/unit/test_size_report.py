"""Only kernels are exempt from the type check."""

from __future__ import annotations

from scripts.size_report import FOLDERS, ROOT, is_kernel, sources

UNTYPED = "# mypy: ignore-errors"


def test_kernels_and_only_kernels_are_left_out_of_the_type_check() -> None:
    for folder in FOLDERS:
        for path in sources(ROOT, folder):
            text = path.read_text(encoding="utf-8")
            is_exempt = "jit" in text and is_kernel(path)  # parsing all sources would take seconds
            assert (UNTYPED in text.splitlines()) == is_exempt, f"{path}: kernels have {UNTYPED!r}, other modules do not"

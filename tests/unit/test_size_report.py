"""Only kernels are exempt from the type check."""

from __future__ import annotations

from scripts.size_report import FOLDERS, ROOT, is_kernel, sources

UNTYPED = "# mypy: ignore-errors"


def test_kernels_and_only_kernels_are_left_out_of_the_type_check() -> None:
    for folder in FOLDERS:
        for path in sources(ROOT, folder):
            untyped = UNTYPED in path.read_text(encoding="utf-8").splitlines()
            assert untyped == is_kernel(path), f"{path}: kernels have {UNTYPED!r}, other modules do not"

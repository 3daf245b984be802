"""What several folders of unit tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bistream.text.tokenizer import TextTokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """Of 500 entries and the special tokens of CosyVoice2."""
    from bistream.text.tokenizer import TextTokenizer  # noqa: PLC0415  (most tests need none)
    from scripts._tokenizer_files import write_tokenizer_files  # noqa: PLC0415

    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer_files(directory, 500)
    return TextTokenizer.from_model_dir(directory)

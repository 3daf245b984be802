"""A language model with one table in recorded graphs on a GPU: it is recorded at all, and sessions end with tokens of its codec."""

from __future__ import annotations

import queue
from pathlib import Path

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.families.spark import SPARK
from bistream.text2token.one_table.prompts import SpeakerTokens
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.types import GenerationOptions, SpeechTokens
from scripts.make_checkpoint import make_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def test_sessions_end_with_tokens(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", "tiny", seed=0, family=SPARK.name)
    service = SpeechTokenService(RuntimeConfig(model_dir=str(tmp_path / "model"), device="cuda", kernels="graphs", max_sessions=8))
    messages: queue.SimpleQueue[SpeechTokens | BistreamError] = queue.SimpleQueue()
    voice = np.array(SpeakerTokens(tuple(range(32))).numbers, np.int32)
    try:
        for number in range(8):
            options = GenerationOptions(seed=number, temperature=float(number > 0), top_k=50 if number % 2 else None)
            service.start(LanguageModelStart(str(number), b"One. Two.", True, "", np.zeros(0, np.int32), options, voice), messages.put)
        tokens, ended = list[int](), 0
        while ended < 8:
            message = messages.get(timeout=120)
            assert isinstance(message, SpeechTokens), message
            tokens += message.token_ids
            ended += message.is_final
    finally:
        service.close()
    assert tokens and 0 <= min(tokens) and max(tokens) < 512

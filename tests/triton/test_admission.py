"""A server that can make 2.5 audio seconds per second: it speaks with two callers, refuses others at once, and says when to come again."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bistream.errors import BusyError
from bistream.keeper.server_process import TritonServer
from tests.triton.conftest import serve
from tests.triton.requests import Stream, ask
from tests.triton.test_sessions import MODEL, Voice, check_audio

logger = logging.getLogger(__name__)

TEXT = "The first words are spoken. "


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Any) -> Iterator[str]:
    limits = {"admission_load": "0.9", "token2wav.capacity_audio_s_per_s": "2.5", "cosyvoice2_bistream.max_sessions": "6"}
    servers: Iterator[TritonServer] = serve(tmp_path_factory.mktemp("full"), tiny_model_dir, **limits)
    for server in servers:
        yield server.grpc_url


def test_a_full_server_speaks_with_its_callers_and_refuses_others(url: str, voice: Voice) -> None:
    check_audio(ask(url, MODEL, target_text=TEXT, **voice), len(TEXT))  # the front model now knows the capacity
    with Stream(url) as first, Stream(url) as second:
        talks = []
        for stream in (first, second):
            session_id = uuid.uuid4().hex
            start = stream.send(MODEL, session_id=session_id, target_text=TEXT, is_end=False, **voice)
            stream.receive_audio(start)  # a session counts more until then
            talks.append((stream, session_id, start))
        began = time.monotonic()
        refused = ask(url, MODEL, target_text=TEXT, **voice)
        logger.info("refused after %.1f ms: %s", 1000 * (time.monotonic() - began), refused.error)
        assert isinstance(refused.error, BusyError) and not refused.outputs
        assert refused.error.retry_after_s is not None and refused.error.retry_after_s > 0
        for stream, session_id, start in talks:
            stream.send(MODEL, session_id=session_id, target_text="Last.", is_start=False, is_end=True)
            check_audio(stream.receive(start), len(TEXT + "Last."))
    check_audio(ask(url, MODEL, target_text=TEXT, **voice), len(TEXT))

"""The callers of the tests on the real server: what they say a session ended with, whatever follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bistream.client.server_errors import server_error
from tests.triton.callers import BROKEN, Caller
from tests.triton.conftest import wait_for
from tests.unit.client.fake_server import FakeServer, Received, Stream

ERROR = "ENGINE_ERROR: The speech server was lost; start the session again."
VOICE: dict[str, Any] = {"speaker_id": "anna"}


def failing(request: Received, stream: Stream) -> None:
    """As a gate whose server is lost: an error, then the final response of the same request."""
    stream.audio(request.id, np.zeros(240), 0, 1)
    stream.error(request.id, ERROR)


def speaking(request: Received, stream: Stream) -> None:
    stream.audio(request.id, np.zeros(240), 0, 1)
    stream.final(request.id)


def silent(request: Received, stream: Stream) -> None:
    stream.audio(request.id, np.zeros(240), 0, 1)


@pytest.mark.parametrize(
    ("behave", "ending", "finals"), [(failing, server_error(ERROR).code, 1), (speaking, "audio", 1), (silent, BROKEN, 0)]
)
def test_the_first_of_error_final_response_and_broken_stream_is_the_ending(behave: Any, ending: str, finals: int) -> None:
    server = FakeServer(behave)
    caller = Caller(server.address, VOICE)
    caller.wait_audio()
    wait_for(lambda: caller.finals == finals, "the final response")
    server.stop()
    wait_for(lambda: BROKEN in caller.codes, "the end of the stream")
    assert caller.wait_end(0.0) and caller.ending == ending
    assert caller.codes == ([BROKEN] if ending in ("audio", BROKEN) else [ending, BROKEN])
    caller.close()

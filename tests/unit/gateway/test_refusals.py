"""What a refusal says beside its code."""

from __future__ import annotations

import pytest

from bistream.contract.refusals import server_full, sessions_taken
from bistream.errors import BistreamError, BusyError, InvalidInputError
from gateway.refusals import retry_after


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (server_full(2.04), "2"),
        (server_full(2.5), "3"),
        (server_full(0.5), "1"),
        (sessions_taken(64, retry_after_s=12.0), "12"),
        (sessions_taken(64), None),
        (BusyError("Try again later."), None),
        (InvalidInputError("Never try again in 5 s."), None),
    ],
)
def test_http_names_the_time_in_whole_seconds(error: BistreamError, seconds: str | None) -> None:
    assert retry_after(error).get("retry-after") == seconds

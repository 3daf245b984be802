"""Random sessions of every kind, concurrently: nothing is left behind."""

from __future__ import annotations

import logging
import random

import pytest

from bistream.config import RuntimeConfig
from bistream.errors import BusyError, CancelledError, EngineError, InvalidInputError, SessionExistsError, UnknownSessionError
from tests.unit.sessions.fakes import FakeSender, append_request, cancel_request, start_request
from tests.unit.sessions.house import House


def random_session(house: House, name: str, choice: random.Random) -> FakeSender:
    """A random use of a session: pieces of any size, perhaps cancelled, disconnected, abandoned or invalid at some point."""
    text = "".join(choice.choice("ab \u4f60\u597d.") for _ in range(choice.randint(1, 60))) + "x"
    data = text.encode()
    cuts = sorted(choice.sample(range(len(data) + 1), choice.randint(0, min(4, len(data)))))
    pieces = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    sender = house.send(start_request(pieces[0], name, is_end=len(pieces) == 1))
    for index, piece in enumerate(pieces[1:], 2):
        event = choice.random()
        if event < 0.05:
            house.send(cancel_request(name))
        elif event < 0.1:
            sender.gone = True
        elif event < 0.15:
            house.send(append_request(b"\xff\xff", session_id=name))
        house.send(append_request(piece, index == len(pieces), name))
    return sender


@pytest.mark.parametrize("seed", range(2))
def test_random_sessions_leave_nothing_behind(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "bistream")
    choice = random.Random(seed)
    house = House(RuntimeConfig(max_sessions=16, max_text_chars=200, drain_timeout_s=0.0), watched=True)
    for number in (9, 30, 77):
        house.models.token2wav.fails_at[number] = EngineError("The flow broke; try again.")
    senders = []
    for number in range(50):
        senders.append(random_session(house, f"s{number % 20}", choice))
        if len(senders) % 10 == 0:
            for sender in senders[-10:]:
                sender.wait()
    errors = [sender.wait() for sender in senders]
    house.wait_empty()
    assert all(len(sender.endings) == 1 and sender.calls_after_end == 0 for sender in senders)
    assert any(error is None for error in errors)
    assert {type(error) for error in errors if error is not None} <= {
        BusyError,
        CancelledError,
        EngineError,
        SessionExistsError,
        InvalidInputError,
        UnknownSessionError,
    }
    house.orchestrator.close()

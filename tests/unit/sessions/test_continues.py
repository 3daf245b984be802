"""The language model is told which session another one continues, by its own id of it: one of the same caller, in the same voice."""

from __future__ import annotations

from typing import Any

import pytest

from bistream.contract.earlier_sessions import KEPT_S
from bistream.errors import CancelledError, InvalidInputError
from tests.unit.sessions.fakes import REFERENCE, cancel_request, start_request
from tests.unit.sessions.house import House


def told(house: House, **changes: Any) -> tuple[str, str | None]:
    """A session that is spoken: its id at the language model, and the id that it continues there."""
    assert house.send(start_request(**changes)).wait() is None
    start = house.models.language_model.starts[-1]
    return start.session_id, start.options.continues


def test_a_session_of_the_same_caller_and_voice_is_continued(house: House) -> None:
    first, nothing = told(house, session_id="first")
    second, earlier = told(house, session_id="second", continues="first")
    assert nothing is None and earlier == first
    assert told(house, session_id="second", continues="second")[1] == second, "a client may use an id again"
    assert told(house, session_id=None, continues="first")[1] == first


@pytest.mark.parametrize(
    "changes",
    [{"continues": "nobody"}, {"session_secret": "yours"}, {"reference_wav": REFERENCE[:12000]}, {"reference_text": "Else."}],
    ids=["unknown", "another caller", "another recording", "another transcript"],
)
def test_any_other_name_is_as_none(house: House, changes: dict[str, object]) -> None:
    first, _ = told(house, session_id="first")
    own, earlier = told(house, **{"session_id": "second", "continues": "first", **changes})
    assert earlier == own != first, "itself, by which the model knows nothing"


def test_it_is_forgotten_after_a_minute(house: House) -> None:
    first, _ = told(house, session_id="first")
    house.clock.now += KEPT_S
    assert told(house, session_id="second", continues="first")[1] == first
    house.clock.now += 1.0
    own, earlier = told(house, session_id="third", continues="first")
    assert earlier == own


def test_a_cancelled_session_is_not_continued(house: House) -> None:
    sender = house.send(start_request("Hello ", session_id="first", is_end=False))
    house.wait_receiving()
    house.send(cancel_request("first"))
    assert isinstance(sender.wait(), CancelledError)
    own, earlier = told(house, session_id="second", continues="first")
    assert earlier == own


def test_a_name_has_the_form_of_an_id(house: House) -> None:
    error = house.refused(start_request(continues="not an id"))
    assert isinstance(error, InvalidInputError) and error.sentence.startswith("continues must be")

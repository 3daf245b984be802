"""A session may name an earlier one of its own caller; of all other names nothing is told, not even whether they exist."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bistream.contract.earlier_sessions import KEPT_S
from bistream.errors import InvalidInputError
from gateway.conversation import Conversation
from gateway.keys import Keys
from gateway.messages import read_request
from gateway.settings import GateLimits
from tests.unit.gateway.fakes import FakeStream, House, answers
from tests.unit.gateway.requests import cancel, message, start

KEYS = Keys({"k" * 16: "anna", "l" * 16: "bert"})


async def spoken(house: House, client: Conversation, session_id: str = "turn", secret: str | None = None, fails: bool = False) -> str:
    """The gate's id of a session that has ended."""
    await client.send(replace(start(session_id, "x", is_end=True), secret=secret))
    if fails:
        house.last.error("ENGINE_ERROR: It failed.")
    house.last.final()
    await answers(client, 2 if fails else 1)
    return own_id(house.last, "session_id")


async def named(house: House, client: Conversation, earlier: str = "turn", secret: str | None = None, session_id: str = "next") -> str:
    """What the server is told of the session that a start names."""
    await client.send(replace(start(session_id, "y", continues=earlier), secret=secret))
    return own_id(house.last, "continues")


def own_id(stream: FakeStream, name: str) -> str:
    return stream.tensors(0)[name][4:].decode()


async def test_its_caller_continues_it_under_the_gates_id() -> None:
    house = House(keys=KEYS)
    first, second = house.client(key="k" * 16), house.client("10.0.0.9", key="k" * 16)
    before = await spoken(house, first)
    assert await named(house, second) == before, "any stream of the key"
    assert await named(house, second, session_id="turn") == before, "also where the client calls both the same"


@pytest.mark.parametrize("has_secret", [True, False])
async def test_without_keys_it_is_the_stream_or_the_secret(has_secret: bool) -> None:
    house = House()
    secret = "mine" if has_secret else None
    first = house.client()
    before = await spoken(house, first, secret=secret)
    assert await named(house, first, secret=secret) == before
    assert (await named(house, house.client(), secret=secret) == before) == has_secret


async def test_names_of_strangers_unknown_and_forgotten_ones_look_the_same() -> None:
    house = House(keys=KEYS)
    owner, stranger = house.client(key="k" * 16), house.client(key="l" * 16)
    before = await spoken(house, owner)
    told = [await named(house, stranger, session_id="a"), await named(house, stranger, "never-there", session_id="b")]
    house.clock.now += KEPT_S + 1
    told.append(await named(house, owner, session_id="c"))
    assert before not in told and len({len(one) for one in (before, *told)}) == 1 and len(set(told)) == len(told)


@pytest.mark.parametrize("secret", ["yours", None])
async def test_another_secret_is_another_caller(secret: str | None) -> None:
    house = House()
    client = house.client()
    before = await spoken(house, client, secret="mine")
    assert await named(house, client, secret=secret) != before


@pytest.mark.parametrize("how", ["fails", "cancelled", "live"])
async def test_what_has_not_been_spoken_to_its_end_is_not_continued(how: str) -> None:
    house = House()
    client = house.client()
    if how == "fails":
        before = await spoken(house, client, fails=True)
    else:
        await client.send(start("turn", "x"))
        before = own_id(house.last, "session_id")
        if how == "cancelled":
            await client.send(cancel("turn"))
            house.last.error("CANCELLED: The client cancelled.")
            house.last.final()
    assert await named(house, client) != before


def test_the_secret_is_read_and_checked() -> None:
    request = message(target_text="x")
    request.parameters["session_secret"].string_param = "mine"
    assert read_request(request, GateLimits()).secret == "mine"
    request.parameters["session_secret"].string_param = "not fit"
    with pytest.raises(InvalidInputError, match="session_secret"):
        read_request(request, GateLimits())

"""The models that a front model calls, behind the real end of its channels; one function answers every call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bistream.contract.codec import ArrayInputs, Inputs
from bistream.contract.fields import CALLED_BISTREAM, LLM_BISTREAM, TOKEN2WAV
from bistream.contract.refusals import parse_error
from bistream.transport.call_sockets import socket_path
from bistream.transport.channel_end import ChannelEnds
from bistream.transport.sender import Answerer
from tests.unit.triton.fakes import Arrays, FakeResponse

WAIT_S = 120.0
CONTRACTS = (LLM_BISTREAM, TOKEN2WAV, CALLED_BISTREAM)


class Siblings:
    """They listen in the control directory of the environment. calls: (model, inputs), in the order of their arrival."""

    def __init__(self, answer: Callable[[str, Arrays], list[FakeResponse]]) -> None:
        self.calls: list[tuple[str, Arrays]] = []
        self._answer = answer
        self._outbox = ThreadPoolExecutor(1)
        self._ends = [
            ChannelEnds(socket_path(contract.name), contract, partial(self.handle, contract.name), self._outbox) for contract in CONTRACTS
        ]

    def close(self) -> None:
        for ends in self._ends:
            ends.close()
        self._outbox.shutdown()

    def handle(self, model: str, inputs: Inputs, sender: Answerer) -> None:
        assert isinstance(inputs, ArrayInputs)
        self.calls.append((model, inputs._arrays))
        (response,) = self._answer(model, inputs._arrays)
        if response.has_error():
            sender.fail(parse_error(response.error().message()))
        elif arrays := response.arrays():
            sender.send_last(arrays)
        else:
            sender.finish()

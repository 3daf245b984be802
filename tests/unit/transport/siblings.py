"""The models that a front model calls, behind the real end of its channels; one function answers every call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bistream.contract.codec import CallInputs, Inputs, Values
from bistream.contract.fields import CALLED_BISTREAM, LLM_BISTREAM, TOKEN2WAV
from bistream.errors import BistreamError
from bistream.transport.call_sockets import socket_path
from bistream.transport.channel_end import ChannelEnds
from bistream.transport.sender import Answerer

WAIT_S = 120.0
Answer = Values | BistreamError  # no values: the call ends without an answer
CONTRACTS = (LLM_BISTREAM, TOKEN2WAV, CALLED_BISTREAM)


class Siblings:
    """They listen in the control directory of the environment. calls: (model, inputs), in the order of their arrival."""

    def __init__(self, answer: Callable[[str, Values], Answer]) -> None:
        self.calls: list[tuple[str, Values]] = []
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
        assert isinstance(inputs, CallInputs)
        self.calls.append((model, inputs._values))
        answer = self._answer(model, inputs._values)
        if isinstance(answer, BistreamError):
            sender.finish(answer)
        elif answer:
            sender.send(answer, is_last=True)
        else:
            sender.finish()

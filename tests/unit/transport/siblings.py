"""The models that a front model calls, behind the real end of its channels; one function answers every call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bistream.contract.codec import ArrayInputs, Inputs
from bistream.contract.fields import CALLED_BISTREAM, LLM_BISTREAM, TOKEN2WAV
from bistream.contract.refusals import parse_error
from bistream.errors import BistreamError
from bistream.transport.call_sockets import socket_path
from bistream.transport.channel_end import BlsEnds
from bistream.transport.direct_end import DirectEnds
from bistream.transport.sender import Answerer, SiblingResponseSender, public_error
from bistream.triton.inputs import TritonInputs
from tests.unit.triton.fakes import Arrays, FakePbUtils, FakeRequest, FakeResponse, FakeSender

WAIT_S = 120.0
CONTRACTS = {contract.name: contract for contract in (LLM_BISTREAM, TOKEN2WAV, CALLED_BISTREAM)}


class AwaitedSender(FakeSender):
    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def send(self, response: FakeResponse | None = None, flags: int = 0) -> None:
        super().send(response, flags)
        if flags:
            self.ended.set()


class Siblings:
    """calls: (model, inputs), in the order of their arrival. requests: of channels, by what they carried."""

    def __init__(self, answer: Callable[[str, Arrays], list[FakeResponse]]) -> None:
        self.calls: list[tuple[str, Arrays]] = []
        self.requests: list[str] = []
        self.backend = FakePbUtils(self._exec)
        self._answer = answer
        self._outbox = ThreadPoolExecutor(1)
        self._sockets: list[DirectEnds] = []
        self._execute = threading.Lock()  # one request at a time, as in Triton
        self._ends = {name: BlsEnds(contract, partial(self.handle, name), self._outbox) for name, contract in CONTRACTS.items()}

    def listen(self) -> None:
        """On sockets as well."""
        for contract in CONTRACTS.values():
            path = socket_path(contract.name)
            assert path is not None, "a control directory was given"
            self._sockets.append(DirectEnds(path, contract, partial(self.handle, contract.name), self._outbox))

    def close(self) -> None:
        for ends in self._sockets:
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

    def _exec(self, model: str, arrays: Arrays) -> list[FakeResponse]:
        if "channel_id" not in arrays:
            self.calls.append((model, arrays))
            return self._answer(model, arrays)
        triton_sender = AwaitedSender()
        sender = SiblingResponseSender(self.backend, triton_sender)
        with self._execute:
            self.requests.append("calls" if "calls" in arrays else "collect")
            try:
                inputs: Any = TritonInputs(FakeRequest(None, **arrays), CONTRACTS[model])
                self._ends[model].take(inputs.value("channel_id"), inputs, sender)
            except BistreamError as error:
                sender.fail(public_error(error))
        assert triton_sender.ended.wait(WAIT_S), "a request was never answered"
        return [response or FakeResponse() for response, _ in triton_sender.sent]

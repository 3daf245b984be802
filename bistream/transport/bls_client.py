"""Calls from one Triton model to its siblings over BLS, through ``pb_utils.InferenceRequest``.

A request blocks until it is answered (as does iterating over a decoupled result; ``async_exec`` blocks a thread of a pool instead).
Cancellation does not propagate through BLS and an iterator cannot be cancelled: to stop a session, its ``cancel`` must be sent.
``is_cancelled`` is never called on a request made here: it would abort the server. An error response is the last one read from an iterator
(see ``sender.SiblingResponseSender``).
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from bistream.contract.codec import Arrays
from bistream.contract.fields import ModelContract
from bistream.contract.refusals import parse_error, shut_down
from bistream.errors import BistreamError, EngineError
from bistream.transport.iterator_keeper import IteratorKeeper

logger = logging.getLogger(__name__)


class BlsClient:
    """Calls sibling models; responses come back as dictionaries of arrays, errors as the original ``BistreamError``."""

    def __init__(self, pb_utils: Any, keeper: IteratorKeeper) -> None:
        self._pb_utils = pb_utils
        self._keeper = keeper

    def ask(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """The single response of a decoupled model; empty when it carries no data. Raises ``BistreamError``.

        A sibling must answer once, with the final flag on its only response. A second response can deadlock three threads: the
        stub's delivering thread locks the table of iterators and then the iterator; the waiting thread wakes up holding the
        iterator's lock and needs the GIL; the end of any other ``exec`` holds the GIL and needs the table (seen within minutes
        with ten busy clients). The first response takes another path.
        """
        responses = self._request(contract, arrays).exec(decoupled=True)
        try:
            answers = [self._outputs(response) for response in responses]
        finally:
            self._keeper.keep(responses)
        return next((answer for answer in answers if answer), {})

    def call(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """The response of a model that is not decoupled."""
        return self._outputs(self._request(contract, arrays).exec(decoupled=False))

    def _request(self, contract: ModelContract, arrays: Arrays) -> Any:
        return self._pb_utils.InferenceRequest(
            model_name=contract.name,
            requested_output_names=[spec.name for spec in contract.outputs],
            inputs=[self._pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()],
        )

    def _outputs(self, response: Any) -> Arrays:
        if response.has_error():
            raise sibling_error(response.error().message())
        # The tensors live in shared memory that is reused once the response is freed.
        return {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}


def sibling_error(message: str) -> BistreamError:
    """The error in a sibling's message; Triton's own messages, which may contain paths, go to the log only."""
    error = parse_error(message)
    if type(error) is not BistreamError:
        return error
    logger.warning("a call to another model failed: %s", message)
    if "not ready" in message:  # models are being unloaded while sessions still run
        return shut_down()
    return EngineError("A model of the server failed; try again.")

"""Calls of the models that analyse recordings, over BLS (``pb_utils.InferenceRequest``): Triton batches them.

A call blocks until it is answered, and a model that is not loaded at the moment refuses it at once. Sessions' calls go over sockets
(``channel.py``). ``is_cancelled`` is never called on a request made here: it would abort the server.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from bistream.contract.codec import Arrays
from bistream.contract.fields import ModelContract
from bistream.contract.refusals import parse_error, shut_down
from bistream.errors import BistreamError, EngineError

logger = logging.getLogger(__name__)


class BlsClient:
    def __init__(self, pb_utils: Any) -> None:
        self._pb_utils = pb_utils

    def call(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """The response of a model that is not decoupled. Raises the ``BistreamError`` that it answers with."""
        request = self._pb_utils.InferenceRequest(
            model_name=contract.name,
            requested_output_names=[spec.name for spec in contract.outputs],
            inputs=[self._pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()],
        )
        response = request.exec(decoupled=False)
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

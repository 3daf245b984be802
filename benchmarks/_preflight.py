"""Asks a server, before a load test, whether it can be tested at all: one sentence instead of a table of failures."""

from __future__ import annotations

from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from bistream.client.connection import ClientSecurity
from bistream.client.inquiry import parameters_of
from bistream.client.server_errors import server_error
from bistream.contract.audio import sample_rate_of
from bistream.errors import BistreamError, NotServedError, WrongCallError

TIMEOUT_S = 10.0
_UNREACHABLE = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")


def check_server(server: str, security: ClientSecurity, model: str, decoupled: bool) -> int:
    """The sample rate of its speech, in Hz.

    Raises ``ConnectionError`` where nobody answers, and the ``BistreamError`` for a model that is not there or called in another way.
    """
    config = ask(server, security, "get_model_config", model_name=model)["config"]
    if bool(config.get("model_transaction_policy", {}).get("decoupled", False)) == decoupled:
        return sample_rate_of(parameters_of(config))
    if decoupled:
        raise WrongCallError(f"{model} here answers in one piece; serve it with `bash run.sh 2 3 streaming`, or use the mode offline.")
    raise WrongCallError(f"{model} here streams; serve it with `bash run.sh 2 3 offline`, or use the mode streaming.")


def ask(server: str, security: ClientSecurity, question: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a method of ``InferenceServerClient``, as JSON. Raises as ``check_server``."""
    client = triton.InferenceServerClient(server, **security.grpc_options())
    try:
        answer: dict[str, Any] = getattr(client, question)(**arguments, headers=security.headers(), as_json=True, client_timeout=TIMEOUT_S)
        return answer
    except InferenceServerException as error:
        raise failure(error, server) from None
    finally:
        client.close()


def failure(error: InferenceServerException, server: str) -> BistreamError | ConnectionError:
    """Of a call without a stream, whose gRPC status alone tells a lost server from a refusal."""
    message = error.message() or "The server gave no reason."
    if error.status() in _UNREACHABLE:
        return ConnectionError(
            f"No server answers at {server} ({message}); start one with `bash run.sh serve`, name it with --server, or check its TLS."
        )
    found = server_error(message)
    if isinstance(found, NotServedError):
        return NotServedError(f"The server at {server} does not serve the model; check its model repository. It said: {message}")
    return found

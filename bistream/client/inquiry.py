"""What a server answers about itself, over gRPC. For ``health`` and its kin."""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from bistream.client.connection import ClientSecurity, add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_SERVER, fail
from bistream.client.translation import no_answer, stream_error
from bistream.contract.fields import COSYVOICE2, COSYVOICE2_BISTREAM
from bistream.contract.voices import ListedVoice, parse_voices
from bistream.errors import BistreamError

MODELS = (COSYVOICE2_BISTREAM.name, COSYVOICE2.name)


def parameters_of(config: dict[str, Any]) -> dict[str, str]:
    """Of a model's configuration."""
    return {name: parameter.get("string_value", "") for name, parameter in config.get("parameters", {}).items()}


class Inquiry:
    """Every call raises ``BistreamError`` and ``ConnectionError``."""

    def __init__(self, address: str, security: ClientSecurity, timeout_s: float) -> None:
        self._address = address
        self._connection = triton.InferenceServerClient(address, **security.grpc_options())
        self._options: dict[str, Any] = {"headers": security.headers(), "client_timeout": timeout_s}

    def is_live(self) -> bool:
        return bool(self._ask(self._connection.is_server_live))

    def is_ready(self, model: str | None = None) -> bool:
        """Of the whole server, or of one model."""
        if model is None:
            return bool(self._ask(self._connection.is_server_ready))
        return bool(self._ask(self._connection.is_model_ready, model))

    def metadata(self, model: str | None = None) -> dict[str, Any]:
        """Of the whole server, or of one model."""
        if model is None:
            return dict(self._ask(self._connection.get_server_metadata, as_json=True))
        return dict(self._ask(self._connection.get_model_metadata, model, as_json=True))

    def config(self, model: str) -> dict[str, Any]:
        return dict(self._ask(self._connection.get_model_config, model, as_json=True).get("config", {}))

    def voices(self) -> tuple[ListedVoice, ...]:
        """That requests may name, the default first."""
        answers: queue.SimpleQueue[tuple[Any, InferenceServerException | None]] = queue.SimpleQueue()
        wanted = triton.InferInput("is_voice_list", [1, 1], "BOOL")
        wanted.set_data_from_numpy(np.array([[True]]))
        self._connection.start_stream(lambda result, error: answers.put((result, error)), headers=self._options["headers"])
        try:
            with contextlib.suppress(InferenceServerException):  # the stream is broken, and has told why
                self._connection.async_stream_infer(COSYVOICE2_BISTREAM.name, [wanted])
            result, error = answers.get(timeout=self._options["client_timeout"])
        except queue.Empty:
            raise no_answer(self._address, "timed out") from None
        finally:
            self._connection.stop_stream(cancel_requests=True)
        if error is not None:
            raise stream_error(error, self._address)
        return parse_voices(result.as_numpy("voices").item())

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options, **self._options)
        except InferenceServerException as error:
            raise stream_error(error, self._address) from None


def ask(description: str, arguments: list[str] | None, answer: Callable[[Inquiry, argparse.Namespace], int]) -> int:
    """The command line of an inquiry. answer: prints, and returns the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--server", metavar="HOST:PORT", default="localhost:8001", help="its gRPC address (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_security_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        return answer(Inquiry(options.server, security_of(parser, options), options.timeout), options)
    except BistreamError as error:
        return fail(f"{error.code}: {error.sentence}", EXIT_SERVER)
    except BrokenPipeError:  # of the standard output
        raise
    except ConnectionError as error:
        return fail(str(error), EXIT_CONNECTION)


def show(value: dict[str, Any]) -> None:
    """One JSON object on the standard output."""
    json.dump(value, sys.stdout, ensure_ascii=False)
    print()

"""What a server answers about itself, over gRPC or HTTP: the same dictionaries from both. For ``health`` and its kin."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import queue
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from bistream.client.connection import ClientSecurity, add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_SERVER, fail
from bistream.client.server_errors import server_error
from bistream.client.translation import no_answer, stream_error
from bistream.contract.fields import COSYVOICE2, COSYVOICE2_BISTREAM
from bistream.contract.voices import ListedVoice, parse_voices
from bistream.errors import BistreamError

MODELS = (COSYVOICE2_BISTREAM.name, COSYVOICE2.name)


class Inquiry(Protocol):
    """Every call raises ``BistreamError`` and ``ConnectionError``."""

    def is_live(self) -> bool: ...

    def is_ready(self, model: str | None = None) -> bool:
        """Of the whole server, or of one model."""
        ...

    def metadata(self, model: str | None = None) -> dict[str, Any]: ...

    def config(self, model: str) -> dict[str, Any]: ...

    def statistics(self, model: str) -> dict[str, Any]: ...


def parameters_of(config: dict[str, Any]) -> dict[str, str]:
    """Of a model's configuration."""
    return {name: parameter.get("string_value", "") for name, parameter in config.get("parameters", {}).items()}


class GrpcInquiry:
    def __init__(self, address: str, security: ClientSecurity, timeout_s: float) -> None:
        self._address = address
        self._connection = triton.InferenceServerClient(address, **security.grpc_options())
        self._options: dict[str, Any] = {"headers": security.headers(), "client_timeout": timeout_s}

    def is_live(self) -> bool:
        return bool(self._ask(self._connection.is_server_live))

    def is_ready(self, model: str | None = None) -> bool:
        if model is None:
            return bool(self._ask(self._connection.is_server_ready))
        return bool(self._ask(self._connection.is_model_ready, model))

    def metadata(self, model: str | None = None) -> dict[str, Any]:
        if model is None:
            return dict(self._ask(self._connection.get_server_metadata, as_json=True))
        return dict(self._ask(self._connection.get_model_metadata, model, as_json=True))

    def config(self, model: str) -> dict[str, Any]:
        return dict(self._ask(self._connection.get_model_config, model, as_json=True).get("config", {}))

    def statistics(self, model: str) -> dict[str, Any]:
        return dict(self._ask(self._connection.get_inference_statistics, model, as_json=True))

    def voices(self) -> tuple[ListedVoice, ...]:
        """That requests may name, the default first. Of gRPC alone: the model streams. Raises as the other calls do."""
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


class HttpInquiry:
    def __init__(self, address: str, security: ClientSecurity, timeout_s: float) -> None:
        self._base = address if "://" in address else f"{'https' if security.tls else 'http'}://{address}"
        self._security = security
        self._timeout_s = timeout_s

    def is_live(self) -> bool:
        return self._status("/v2/health/live")

    def is_ready(self, model: str | None = None) -> bool:
        return self._status("/v2/health/ready" if model is None else f"/v2/models/{model}/ready")

    def metadata(self, model: str | None = None) -> dict[str, Any]:
        return self._json("/v2" if model is None else f"/v2/models/{model}")

    def config(self, model: str) -> dict[str, Any]:
        return self._json(f"/v2/models/{model}/config")

    def statistics(self, model: str) -> dict[str, Any]:
        return self._json(f"/v2/models/{model}/stats")

    def infer(self, model: str, body: bytes) -> dict[str, Any]:
        """A call of a model. body: JSON."""
        return self._json(f"/v2/models/{model}/infer?request_id=0", body)

    def _status(self, path: str) -> bool:
        try:
            self._call(path)
        except urllib.error.HTTPError:
            return False
        return True

    def _json(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        try:
            return dict(json.loads(self._call(path, body)))
        except urllib.error.HTTPError as error:
            raise server_error(_message(error)) from None
        except (ValueError, TypeError):
            raise no_answer(self._base, "its answer is no JSON object") from None

    def _call(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self._base + path, data=body, headers={"Content-Type": "application/json"})
        for name, value in self._security.headers().items():
            request.add_unredirected_header(name, value)  # another host must not get the key
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s, context=self._security.tls_context()) as response:
                answer: bytes = response.read()
                return answer
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise no_answer(self._base, str(getattr(error, "reason", error))) from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return f"The server answered with status {error.code}."


def ask(description: str, arguments: list[str] | None, answer: Callable[[Inquiry, argparse.Namespace], int]) -> int:
    """The command line of an inquiry. answer: prints, and returns the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--server", metavar="HOST:PORT", help="default: localhost:8001, with --http localhost:8000")
    parser.add_argument("--http", action="store_true", help="ask over HTTP instead of gRPC")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_security_arguments(parser)
    options = parser.parse_args(arguments)
    kind = HttpInquiry if options.http else GrpcInquiry
    address = options.server or ("localhost:8000" if options.http else "localhost:8001")
    try:
        return answer(kind(address, security_of(parser, options), options.timeout), options)
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

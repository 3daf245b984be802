"""Offline synthesis over HTTP: one request, one WAV, with the tensors of upstream's runtime (model ``cosyvoice2``, not decoupled).

    bistream say-http "Hello." --reference-audio voice.wav --reference-text "What is said in it." --output hello.wav

``python client/client_http.py`` is the same. Needs ``pip install '.[client]'``. For streaming, and for long recordings: ``bistream say``.
Exit codes: 0 spoken, 1 the server refused or failed, 2 wrong usage, 3 no connection, 130 interrupted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.client.audio import WavWriter, read_reference
from bistream.client.connection import INSECURE, ClientSecurity, add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_INTERRUPTED, EXIT_OK, EXIT_SERVER, EXIT_USAGE, fail
from bistream.client.inquiry import parameters_of
from bistream.client.opening import START_ARGUMENTS
from bistream.client.server_errors import server_error
from bistream.client.translation import no_answer
from bistream.client.voice_options import GENERATION_OPTIONS, LABELS, add_flags, add_options, check_voice, given_inputs, refusal
from bistream.contract.audio import sample_rate_of
from bistream.contract.field import Field
from bistream.contract.fields import COSYVOICE2
from bistream.errors import BistreamError, InvalidInputError, WrongCallError

MAX_BODY_BYTES = 1_000_000  # this Triton release crashes on JSON bodies of 4 MB; a proxy in front should refuse more than 1 MB
SAMPLE_DECIMALS = 5  # finer than a 16-bit step (3.1e-5), and a third of the bytes of a full float


def request_body(text: str, reference_wav: NDArray[np.float32] | None, reference_text: str | None = None, **inputs: Any) -> bytes:
    """Upstream's request: plain JSON, ``inputs`` only. Raises ``InvalidInputError`` when it would be too large for the server.

    inputs: the others, by their names in the wire contract; None: not sent."""
    values: dict[str, Any] = {"reference_text": reference_text, "target_text": text, **inputs}
    if reference_wav is not None:
        samples = [round(float(sample), SAMPLE_DECIMALS) for sample in reference_wav]
        values = {"reference_wav": samples, "reference_wav_len": len(samples), **values}
    inputs_given = [_input(COSYVOICE2.by_name[name], value) for name, value in values.items() if COSYVOICE2.by_name[name].says(value)]
    body = json.dumps({"inputs": inputs_given}, separators=(",", ":")).encode("utf-8")
    if len(body) > MAX_BODY_BYTES:
        raise InvalidInputError(
            f"The request would be {len(body) / 1e6:.1f} MB of JSON, which can crash the server; "
            "use a reference recording of at most 6 seconds, or `bistream say`."
        )
    return body


def _input(field: Field, value: Any) -> dict[str, Any]:
    row = value if isinstance(value, list) else [value]
    return {"name": field.name, "shape": [1, len(row)], "datatype": field.datatype, "data": row if field.datatype == "BYTES" else [row]}


class _HttpModel:
    """One model of a server, over HTTP. Both calls raise ``BistreamError`` and ``ConnectionError``."""

    def __init__(self, server: str, name: str, timeout_s: float, security: ClientSecurity) -> None:
        self._server = server if "://" in server else f"{'https' if security.tls else 'http'}://{server}"
        self._name = name
        self._security = security
        self._timeout_s = timeout_s

    def config(self) -> dict[str, Any]:
        return self._json("/config")

    def infer(self, body: bytes) -> dict[str, Any]:
        """body: JSON."""
        return self._json("/infer?request_id=0", body)

    def _json(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        try:
            return dict(json.loads(self._call(path, body)))
        except urllib.error.HTTPError as error:
            raise server_error(_message(error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise no_answer(self._server, str(getattr(error, "reason", error))) from None
        except (ValueError, TypeError):
            raise no_answer(self._server, "its answer is no JSON object") from None

    def _call(self, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(
            f"{self._server}/v2/models/{self._name}{path}", data=body, headers={"Content-Type": "application/json"}
        )
        for name, value in self._security.headers().items():
            request.add_unredirected_header(name, value)  # another host must not get the key
        with urllib.request.urlopen(request, timeout=self._timeout_s, context=self._security.tls_context()) as response:
            answer: bytes = response.read()
            return answer


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return f"The server answered with status {error.code}."


def synthesize(server: str, model_name: str, body: bytes, timeout_s: float, security: ClientSecurity = INSECURE) -> NDArray[np.float32]:
    """float32 [N]. Raises ``BistreamError`` and ``ConnectionError``."""
    try:
        answer = _HttpModel(server, model_name, timeout_s, security).infer(body)
    except WrongCallError:  # the server's words are about calls, of which this client has only one
        raise WrongCallError("The model streams on this server; use `bistream say`, or serve it with `bash run.sh 2 3 offline`.") from None
    try:
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        return np.asarray(outputs["waveform"], dtype=np.float32).reshape(-1)
    except (KeyError, TypeError, ValueError):
        raise no_answer(server, "its answer has no waveform") from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Speak a text through the server's HTTP port and write a WAV file.")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("words", nargs="?", metavar="TEXT", help="the text to speak")
    text.add_argument("--text", help="the same")
    parser.add_argument(
        "--reference-audio", metavar="FILE", help="a recording of the voice, 0.5 to 6 s; without it the server's default voice"
    )
    parser.add_argument("--reference-text", help="transcript of the recording; without it the text may be in another language")
    parser.add_argument("--speaker-id", help="a registered voice or a preset of the model, instead of a recording")
    add_flags(parser, "is_cross_lingual", "is_marked")
    add_options(parser, (name for name in (*LABELS, *GENERATION_OPTIONS) if name in COSYVOICE2.by_name))
    parser.add_argument("--output", default="output.wav", metavar="FILE", help="WAV file to write (default: %(default)s)")
    parser.add_argument("--server", default="localhost:8000", metavar="HOST:PORT", help="HTTP address (default: %(default)s)")
    parser.add_argument("--model-name", default=COSYVOICE2.name, help="default: %(default)s")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="default: %(default)s")
    add_security_arguments(parser)
    options = parser.parse_args(arguments)
    security = security_of(parser, options)
    check_voice(parser, options)
    try:
        reference_wav = read_reference(options.reference_audio) if options.reference_audio is not None else None
        inputs = given_inputs(COSYVOICE2.by_name, options, START_ARGUMENTS)
        body = request_body(options.text or options.words, reference_wav, **inputs)
    except (ValueError, InvalidInputError) as error:
        return fail(str(error), EXIT_USAGE)
    try:
        waveform = synthesize(options.server, options.model_name, body, options.timeout, security)
        with WavWriter(options.output) as wav:
            config = _HttpModel(options.server, options.model_name, options.timeout, security).config()
            wav.sample_rate = sample_rate_of(parameters_of(config))
            wav.write(waveform)
    except BistreamError as error:
        return fail(refusal(error), EXIT_SERVER)
    except ConnectionError as error:
        return fail(str(error), EXIT_CONNECTION)
    except OSError as error:
        return fail(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return fail("interrupted", EXIT_INTERRUPTED)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())

"""How the clients reach a gate that wants API keys or TLS: options of the command line, and what gRPC and HTTP make of them.

An API key is in no message, no log and no representation of an object. The variable BISTREAM_API_KEY keeps it out of the process list.
"""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

API_KEY_VARIABLE = "BISTREAM_API_KEY"


@dataclass(frozen=True)
class ClientSecurity:
    """tls: also without files of its own, with the authorities of the system. ca, certificate, key: PEM files; the latter two for servers
    that let in only clients with a certificate."""

    api_key: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def headers(self) -> dict[str, str]:
        """Of every call."""
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}

    def grpc_options(self) -> dict[str, Any]:
        """Arguments of ``tritonclient.grpc.InferenceServerClient``."""
        if not self.tls:
            return {}
        return {"ssl": True, "root_certificates": self.ca, "private_key": self.key, "certificate_chain": self.certificate}

    def grpc_credentials(self) -> grpc.ChannelCredentials | None:
        """Of a channel of grpc's own; None: without TLS. Raises ``OSError`` for a file that cannot be read."""
        if not self.tls:
            return None
        ca, key, certificate = (None if file is None else Path(file).read_bytes() for file in (self.ca, self.key, self.certificate))
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def http_context(self) -> ssl.SSLContext | None:
        """Raises ``OSError`` for a file that cannot be used."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


INSECURE = ClientSecurity()


def add_security_arguments(parser: argparse.ArgumentParser) -> None:
    """The same names in every program that talks to a server."""
    group = parser.add_argument_group("API key and TLS")
    group.add_argument("--api-key", metavar="KEY", help=f"default: ${API_KEY_VARIABLE}, which the process list does not show")
    group.add_argument("--tls", action="store_true", help="the server has TLS; implied by the options below")
    group.add_argument("--tls-ca", metavar="PEM", help="who signed the server's certificate (default: the authorities of the system)")
    group.add_argument("--tls-certificate", metavar="PEM", help="of this client, where the server wants one (mutual TLS)")
    group.add_argument("--tls-key", metavar="PEM", help="its private key")


def security_of(
    parser: argparse.ArgumentParser, options: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> ClientSecurity:
    """Ends the program, with a sentence, where the options do not fit together or a file cannot be used."""
    api_key = options.api_key if options.api_key is not None else environment.get(API_KEY_VARIABLE) or None
    if api_key is not None and (not api_key.isascii() or not api_key.isprintable() or " " in api_key or not api_key):
        parser.error(f"the API key (--api-key or {API_KEY_VARIABLE}) must be printable ASCII characters without blanks")
    files = (options.tls_ca, options.tls_certificate, options.tls_key)
    if (options.tls_certificate is None) != (options.tls_key is None):
        parser.error("--tls-certificate and --tls-key belong together")
    security = ClientSecurity(api_key, options.tls or any(file is not None for file in files), *files)
    for name, file in zip(("--tls-ca", "--tls-certificate", "--tls-key"), files, strict=True):
        if file is not None and not Path(file).is_file():
            parser.error(f"{name} {file} is not a file; name one in PEM format")
    try:
        security.http_context()
    except OSError as error:
        parser.error(f"the files of --tls-ca, --tls-certificate and --tls-key cannot be used ({error}); give PEM files that fit")
    return security

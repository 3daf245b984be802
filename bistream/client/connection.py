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
    that let in only clients with a certificate. server_name: in the server's certificate, where it is not the host of the address; the
    asyncio client alone looks at it."""

    api_key: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None

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

    def tls_context(self) -> ssl.SSLContext | None:
        """For connections that this program makes itself. None: without TLS. Raises ``OSError`` for a file that cannot be used."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


INSECURE = ClientSecurity()


def add_security_arguments(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """The same names in every program that talks to a server. prefix: before each of them, in a program that has such options of its own,
    too ("server-")."""
    group = parser.add_argument_group("API key and TLS towards the servers" if prefix else "API key and TLS")
    group.add_argument(f"--{prefix}api-key", metavar="KEY", help=f"default: ${API_KEY_VARIABLE}, which the process list does not show")
    group.add_argument(f"--{prefix}tls", action="store_true", help="the server has TLS; implied by the options below")
    authority = "who signed the server's certificate (default: the authorities of the system)"
    group.add_argument(f"--{prefix}tls-ca", metavar="PEM", help=authority)
    group.add_argument(f"--{prefix}tls-certificate", metavar="PEM", help="of this client, where the server wants one (mutual TLS)")
    group.add_argument(f"--{prefix}tls-key", metavar="PEM", help="its private key")


def security_of(
    parser: argparse.ArgumentParser, options: argparse.Namespace, environment: Mapping[str, str] = os.environ, prefix: str = ""
) -> ClientSecurity:
    """Ends the program, with a sentence, where the options do not fit together or a file cannot be used. prefix: as it was added."""
    names = {name: f"--{prefix}{name}" for name in ("api-key", "tls", "tls-ca", "tls-certificate", "tls-key")}
    given_key, wants_tls, *files = (getattr(options, flag[2:].replace("-", "_")) for flag in names.values())
    api_key = given_key if given_key is not None else environment.get(API_KEY_VARIABLE) or None
    if api_key is not None and (not api_key.isascii() or not api_key.isprintable() or " " in api_key or not api_key):
        parser.error(f"the API key ({names['api-key']} or {API_KEY_VARIABLE}) must be printable ASCII characters without blanks")
    ca, certificate, key = files
    if (certificate is None) != (key is None):
        parser.error(f"{names['tls-certificate']} and {names['tls-key']} belong together")
    security = ClientSecurity(api_key, wants_tls or any(file is not None for file in files), ca, certificate, key)
    for name, file in zip(("tls-ca", "tls-certificate", "tls-key"), files, strict=True):
        if file is not None and not Path(file).is_file():
            parser.error(f"{names[name]} {file} is not a file; name one in PEM format")
    try:
        security.tls_context()
    except OSError as error:
        flags = f"{names['tls-ca']}, {names['tls-certificate']} and {names['tls-key']}"
        parser.error(f"the files of {flags} cannot be used ({error}); give PEM files that fit")
    return security

"""Sockets that listen, and their TLS."""

from __future__ import annotations

import socket
import ssl

import grpc

from bistream.errors import ConfigError
from gateway.settings import TlsSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
BACKLOG = 256


def listening_socket(address: str, port: int, what: str) -> socket.socket:
    """what: the door, for the error. ``::`` takes IPv4 too. Raises ``ConfigError``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=BACKLOG, dualstack_ipv6=address == "::")
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such port"
        raise ConfigError(f"{what} port {port} at {address} cannot be used ({reason}); choose another one.") from None


def server_context(tls: TlsSettings, protocols: list[str]) -> ssl.SSLContext:
    """protocols: what the door speaks, for ALPN. Raises ``ConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # of TLS 1.2: what RFC 9113, appendix A, leaves
    context.set_alpn_protocols(protocols)
    try:
        context.load_cert_chain(tls.certificate, tls.private_key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"The TLS files cannot be used ({error.strerror or error}); name PEM files that belong together.") from None
    return context


def server_credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    """The same for gRPC, which takes TLS 1.2 and later. Raises ``ConfigError``."""
    server_context(tls, ["h2"])  # says what is wrong with the files
    authority = None if tls.client_ca is None else tls.client_ca.read_bytes()
    pair = tls.private_key.read_bytes(), tls.certificate.read_bytes()
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)

"""A client's header fields, checked (RFC 9113, 8.2 and 8.3). What no call needs is not kept."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")  # RFC 9110, 5.6.2, without upper case
_FORBIDDEN = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")
_OF_THE_CONNECTION = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_NEEDED = (":method", ":scheme", ":path")
_ALWAYS_KEPT = frozenset((*_PSEUDO, b"content-type", b"content-length", b"grpc-timeout"))
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
MAX_TIMEOUT_S = 10.0**7  # a timer that is set for longer is none

RawFields = Iterable[tuple[bytes, bytes]]


class Malformed(Exception):
    """The fields break the rules of HTTP: the stream is reset, and the connection goes on."""


def request_fields(fields: RawFields, kept: frozenset[bytes]) -> dict[str, str]:
    """Those of a request that are needed, ``kept`` among them. A name that comes twice has its values joined (RFC 9110, 5.3).

    Raises ``Malformed``.
    """
    found: dict[str, str] = {}
    has_regular = False
    for name, value in fields:
        if name[:1] == b":":
            if has_regular or name not in _PSEUDO or name.decode() in found:
                raise Malformed("a pseudo-header field that is unknown, late or repeated")
            check_value(value)
        else:
            has_regular = True
            check_regular(name, value)
        if name in _ALWAYS_KEPT or name in kept:
            key, text = name.decode(), value.decode("latin-1")
            found[key] = f"{found[key]}, {text}" if key in found else text
    if any(not found.get(name) for name in _NEEDED):
        raise Malformed("a request without method, scheme or path")
    length = found.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise Malformed("a content-length that is no number")
    return found


def check_trailers(fields: RawFields) -> None:
    """Raises ``Malformed``."""
    for name, value in fields:
        check_regular(name, value)


def check_regular(name: bytes, value: bytes) -> None:
    """Raises ``Malformed``."""
    if _NAME.fullmatch(name) is None:
        raise Malformed("a field name with an upper-case letter or a character that no name has")
    if name in _OF_THE_CONNECTION or (name == b"te" and value != b"trailers"):
        raise Malformed("a field of the connection")
    check_value(value)


def check_value(value: bytes) -> None:
    """Raises ``Malformed``."""
    if _FORBIDDEN.search(value):
        raise Malformed("a field value with a character that no value has")


def is_grpc(content_type: str) -> bool:
    """``application/grpc``, alone or with a subtype or parameters; gRPC-Web is another protocol."""
    kind = "application/grpc"
    return content_type == kind or content_type.startswith((f"{kind}+", f"{kind};"))


def timeout_s(value: str | None) -> float | None:
    """``grpc-timeout`` in seconds; ``None`` where there is none, and where it is no timeout."""
    match = None if value is None else _TIMEOUT.fullmatch(value)
    if match is None:
        return None
    seconds = int(match[1]) * _UNIT_S[match[2]]
    return None if seconds > MAX_TIMEOUT_S else seconds

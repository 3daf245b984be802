"""The configuration of Envoy before the servers: fills the chart's ``files/envoy.yaml``.

Used at their start by ``scripts/serve_gpus.py`` and, for compose, ``scripts/run_envoy.py``; Helm fills it itself (``_envoy.tpl``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from gateway.settings import TlsSettings

TEMPLATE = Path(__file__).resolve().parents[2] / "deploy/helm/bistream/files/envoy.yaml"
NOTHING = "# nothing here"  # in the place of an optional section


@dataclass(frozen=True)
class ServerAddress:
    """One server, or all servers that a DNS name stands for: host, the ports of its gate, and the health port of its keeper."""

    host: str
    grpc_port: int
    http_port: int
    health_port: int


@dataclass(frozen=True)
class ProxySettings:
    """Where clients come. admin_port: Envoy's own, on loopback."""

    grpc_host: str
    grpc_port: int
    http_host: str
    http_port: int
    admin_port: int
    tls: TlsSettings | None = None


def envoy_config(settings: ProxySettings, servers: Sequence[ServerAddress], template: str | None = None) -> str:
    """YAML for ``envoy -c``. servers: by address, or by DNS name, of which Envoy takes all addresses and asks again."""
    values = {
        "grpc_host": settings.grpc_host,
        "grpc_port": settings.grpc_port,
        "http_host": settings.http_host,
        "http_port": settings.http_port,
        "admin_port": settings.admin_port,
        "tls_grpc": _transport(settings.tls, "h2"),
        "tls_http": _transport(settings.tls, "http/1.1"),
        "grpc_endpoints": json.dumps([_endpoint(server, server.grpc_port) for server in servers]),
        "http_endpoints": json.dumps([_endpoint(server, server.http_port) for server in servers]),
        "more_listeners": NOTHING,
        "more_clusters": NOTHING,
    }
    return Template(TEMPLATE.read_text(encoding="utf-8") if template is None else template).substitute(values)


def _endpoint(server: ServerAddress, port: int) -> dict[str, Any]:
    address = {"socket_address": {"address": server.host, "port_value": port}}
    return {"endpoint": {"address": address, "health_check_config": {"port_value": server.health_port}}}


def _transport(tls: TlsSettings | None, protocol: str) -> str:
    """The transport of a filter chain. protocol: for ALPN."""
    if tls is None:
        return NOTHING
    certificate = {"certificate_chain": {"filename": str(tls.certificate)}, "private_key": {"filename": str(tls.private_key)}}
    common: dict[str, Any] = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificates": [certificate],
        "alpn_protocols": [protocol],
    }
    context: dict[str, Any] = {"common_tls_context": common}
    if tls.client_ca is not None:
        common["validation_context"] = {"trusted_ca": {"filename": str(tls.client_ca)}}
        context["require_client_certificate"] = True
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    socket = {"name": "envoy.transport_sockets.tls", "typed_config": {"@type": kind, **context}}
    return f"transport_socket: {json.dumps(socket)}"

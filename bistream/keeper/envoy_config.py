"""The configuration of Envoy before several servers: fills the template ``deploy/envoy/envoy.yaml``. Used by ``scripts/serve_gpus.py``."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

TEMPLATE = Path(__file__).resolve().parents[2] / "deploy" / "envoy" / "envoy.yaml"


@dataclass(frozen=True)
class ServerAddress:
    """One server, or all servers that a DNS name stands for: host, the ports of its gate, and the health port of its keeper."""

    host: str
    grpc_port: int
    http_port: int
    health_port: int


@dataclass(frozen=True)
class ProxyTls:
    """PEM files. client_ca: only clients with a certificate that it signed are let in."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class ProxySettings:
    """Where clients come. admin_port: Envoy's own, on loopback."""

    grpc_host: str
    grpc_port: int
    http_host: str
    http_port: int
    admin_port: int
    tls: ProxyTls | None = None


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
        "health_interval": 0.5,
        "dns": "# the defaults of the DNS",
        "more_listeners": "# no others",
        "more_clusters": "# no others",
        "discovery": "STATIC" if all(_is_address(server.host) for server in servers) else "STRICT_DNS",
        "grpc_endpoints": _endpoints(servers, [server.grpc_port for server in servers]),
        "http_endpoints": _endpoints(servers, [server.http_port for server in servers]),
    }
    return Template(TEMPLATE.read_text(encoding="utf-8") if template is None else template).substitute(values)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _endpoints(servers: Sequence[ServerAddress], ports: Sequence[int]) -> str:
    """A YAML list on one line."""
    return json.dumps([_endpoint(server, port) for server, port in zip(servers, ports, strict=True)])


def _endpoint(server: ServerAddress, port: int) -> dict[str, Any]:
    address = {"socket_address": {"address": server.host, "port_value": port}}
    return {"endpoint": {"address": address, "health_check_config": {"port_value": server.health_port}}}


def _transport(tls: ProxyTls | None, protocol: str) -> str:
    """The transport of a filter chain. protocol: for ALPN."""
    if tls is None:
        return "# no TLS"
    certificate = {"certificate_chain": {"filename": str(tls.certificate)}, "private_key": {"filename": str(tls.key)}}
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

"""The configuration of Envoy before the servers: fills the template ``deploy/envoy/envoy.yaml``.

Used by ``scripts/serve_gpus.py`` at its start, and by ``scripts/render_envoy.py`` for compose and the chart.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from gateway.settings import TlsSettings

TEMPLATE = Path(__file__).resolve().parents[2] / "deploy" / "envoy" / "envoy.yaml"
NOTHING = "# nothing here"  # in the place of an optional section
DNS_REFRESH_S = 2


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
        "tls_grpc": transport(settings.tls, "h2"),
        "tls_http": transport(settings.tls, "http/1.1"),
        "discovery": "type: STATIC" if all(_is_address(server.host) for server in servers) else by_name(f"{DNS_REFRESH_S}s"),
        "grpc_endpoints": _endpoints(servers, [server.grpc_port for server in servers]),
        "http_endpoints": _endpoints(servers, [server.http_port for server in servers]),
        "health_interval": 0.5,
        "more_listeners": NOTHING,
        "more_clusters": NOTHING,
    }
    return Template(TEMPLATE.read_text(encoding="utf-8") if template is None else template).substitute(values)


def by_name(refresh: str) -> str:
    """How the addresses of names are found. The servers listen on IPv4."""
    config = {
        "@type": "type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster",
        "dns_refresh_rate": refresh,
        "dns_failure_refresh_rate": {"base_interval": "1s", "max_interval": "5s"},
        "dns_lookup_family": "V4_PREFERRED",
    }
    return f"cluster_type: {json.dumps({'name': 'envoy.cluster.dns', 'typed_config': config})}"


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


def transport(tls: TlsSettings | None, protocol: str) -> str:
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

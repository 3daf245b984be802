#!/usr/bin/env python3
"""Renders deploy/envoy/envoy.yaml for compose (deploy/envoy/compose.yaml) and for the chart (deploy/helm/bistream/files/envoy.yaml).

render_envoy.py            after a change of the template; tests compare the files with it
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from string import Template

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.keeper.envoy_config import NOTHING, TEMPLATE, ProxySettings, ServerAddress, by_name, envoy_config, transport
from gateway.settings import TlsSettings

ROOT = Path(__file__).resolve().parents[1]
CHART_ENDPOINT = (
    '[{endpoint: {address: {socket_address: {address: "{{ include "bistream.headlessHost" . }}.", port_value: {{ int .Values.ports.NAME }}'
    "}}, health_check_config: {port_value: {{ int .Values.ports.health }}}}}]"
)


def rendered() -> dict[Path, str]:
    compose = envoy_config(ProxySettings("0.0.0.0", 8001, "0.0.0.0", 8000, 9901), [ServerAddress("bistream", 8001, 8000, 8003)])
    return {ROOT / "deploy/envoy/compose.yaml": compose, ROOT / "deploy/helm/bistream/files/envoy.yaml": chart_config()}


def chart_config() -> str:
    """The same as a template of Helm, which the chart fills from its values."""
    files = TlsSettings(*(Path("/secrets/tls") / name for name in ("tls.crt", "tls.key", "ca.crt")))
    values = {
        "grpc_host": "0.0.0.0",
        "grpc_port": "{{ int .Values.ports.grpc }}",
        "http_host": "0.0.0.0",
        "http_port": "{{ int .Values.ports.http }}",
        "admin_port": "{{ int .Values.envoy.adminPort }}",
        "tls_grpc": _transport(files, "h2"),
        "tls_http": _transport(files, "http/1.1"),
        "discovery": by_name("{{ int .Values.envoy.dnsRefreshSeconds }}s"),
        "grpc_endpoints": CHART_ENDPOINT.replace("NAME", "grpc"),
        "http_endpoints": CHART_ENDPOINT.replace("NAME", "http"),
        "health_interval": "{{ .Values.envoy.healthCheckSeconds }}",
        "more_listeners": '{{- include "bistream.envoyHealthListener" . | nindent 4 }}',
        "more_clusters": '{{- include "bistream.envoyAdminCluster" . | nindent 4 }}',
    }
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(values)


def _transport(files: TlsSettings, protocol: str) -> str:
    mutual, plain = transport(files, protocol), transport(replace(files, client_ca=None), protocol)
    conditions = "{{ if .Values.tls.clientCa }}", "{{ else if .Values.tls.existingSecret }}", "{{ else }}"
    return "".join(word for pair in zip(conditions, (mutual, plain, NOTHING), strict=True) for word in pair) + "{{ end }}"


def main() -> None:
    for path, text in rendered().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

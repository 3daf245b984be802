#!/usr/bin/env python3
"""Renders deploy/envoy/envoy.yaml for compose (deploy/envoy/compose.yaml) and for the chart (deploy/helm/bistream/files/envoy.yaml).

render_envoy.py            after a change of the template; tests compare the files with it
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.keeper.envoy_config import ProxySettings, ServerAddress, chart_config, envoy_config

ROOT = Path(__file__).resolve().parents[1]


def rendered() -> dict[Path, str]:
    compose = envoy_config(ProxySettings("0.0.0.0", 8001, "0.0.0.0", 8000, 9901), [ServerAddress("bistream", 8001, 8000, 8003)])
    return {ROOT / "deploy/envoy/compose.yaml": compose, ROOT / "deploy/helm/bistream/files/envoy.yaml": chart_config()}


def main() -> None:
    for path, text in rendered().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

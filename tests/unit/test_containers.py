"""Dockerfile and compose file: linted, valid, and consistent with the programs that they start. No container engine runs here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bistream.keeper.server_process import ServerSettings
from interfaces.options import parse_arguments
from interfaces.settings import Settings
from scripts.run_envoy import command
from scripts.serve import make_parser
from scripts.serve_from_environment import read_plan

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE, DOCKERFILE = DEPLOY / "compose.yaml", DEPLOY / "Dockerfile"
MARGIN_S = 20.0
PROFILES = {"one-gpu", "split", "server-per-gpu", "interfaces", "monitoring"}
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+[\w.-]*")


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return found


def servers() -> dict[str, dict[str, Any]]:
    return {name: one for name, one in compose()["services"].items() if name.startswith("server")}


def image_environment() -> dict[str, str]:
    """What the Dockerfile sets."""
    lines = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text(encoding="utf-8")).splitlines()
    return dict(word.split("=", 1) for line in lines if line.startswith("ENV ") for word in line.split()[1:])


def test_what_is_copied_into_the_image_exists_and_is_let_in() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")]
    assert all((ROOT / path).exists() for path in kept)
    assert {
        "bistream",
        "gateway",
        "interfaces",
        "model_repo",
        "requirements",
        "scripts",
        "templates",
        "deploy/entrypoint.sh",
        "pyproject.toml",
    } <= set(kept)


def test_every_profile_has_what_it_needs() -> None:
    services = compose()["services"]
    assert {profile for one in services.values() for profile in one["profiles"]} == PROFILES
    assert {name for name, one in services.items() if "server-per-gpu" in one["profiles"]} == {"server-0", "server-1", "envoy"}
    assert all(set(one["profiles"]) <= set(services["envoy"]["profiles"]) for one in servers().values())
    assert all("envoy" in one["depends_on"] for one in servers().values())  # it is stopped after them
    published = [port for one in servers().values() for port in one.get("ports", ())]
    assert all(port.startswith("127.0.0.1:8003:") for port in published), "clients reach Envoy only"


@pytest.mark.parametrize("name", sorted(servers()))
def test_a_server_of_the_compose_file_starts_as_the_entrypoint_reads_it(name: str) -> None:
    service = servers()[name]
    variables = {**image_environment(), **service["environment"]}
    plan = read_plan({**variables, "MODEL_DIR": str(ROOT)})
    options = make_parser().parse_args(plan.serve_words)
    needed_s = options.drain_timeout_s + ServerSettings.exit_timeout_s + MARGIN_S
    assert service["stop_grace_period"] == f"{needed_s:.0f}s"
    assert (options.grpc_address, options.health_address, options.health_port) == ("0.0.0.0", "0.0.0.0", 8003)
    assert options.behind_proxy


def test_the_interfaces_start_with_their_options_and_find_the_servers() -> None:
    service = compose()["services"]["interfaces"]
    assert service["entrypoint"][-3:] == ["python", "-m", "interfaces"] and service["image"] == servers()["server"]["image"]
    settings = parse_arguments(service["command"])
    options = make_parser().parse_args([])
    health_port = image_environment()["BISTREAM__SERVE__HEALTH_PORT"]
    assert settings.servers == (f"bistream:{options.grpc_port}/{health_port}",)
    assert service["stop_grace_period"] == f"{settings.drain_timeout_s + MARGIN_S:.0f}s"
    (recording,) = settings.recordings
    assert recording.transcript == (ROOT / "assets/reference.txt").read_text(encoding="utf-8").strip()
    folder, _, mount = service["volumes"][0].removesuffix(":ro").partition(":")
    assert recording.audio.is_relative_to(mount) and (DEPLOY / folder / recording.audio.relative_to(mount)).exists()
    assert f"${{LEXICONS_DIR:-lexicons}}:{settings.lexicons_folder}:ro" in service["volumes"] and "lexicons" in compose()["volumes"]
    assert f"http://127.0.0.1:{settings.port}/health/ready" in service["healthcheck"]["test"]
    assert settings.allowed_hosts == ("interfaces",), "its name in the network; localhost is always one"
    assert service["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"], "no API keys are set: nobody else reaches it"


def test_the_split_puts_the_language_model_on_a_gpu_of_its_own() -> None:
    plan = read_plan({**servers()["server-split"]["environment"], "MODEL_DIR": str(ROOT)})
    assert plan.settings["device"] == "cuda:1" and plan.settings["llm_bistream.device"] == "cuda:0"


def test_envoy_stands_before_the_name_and_the_ports_of_the_servers() -> None:
    service, options = compose()["services"]["envoy"], make_parser().parse_args([])
    assert service["entrypoint"][2:-1] == ["python", "scripts/run_envoy.py"] and service["image"] == servers()["server"]["image"]
    assert service["ports"] == [f"{port}:{port}" for port in (options.http_port, options.grpc_port)]
    found = yaml.safe_load(command(service["entrypoint"][-1])[2])["static_resources"]
    listeners = {one["name"]: one["address"]["socket_address"] for one in found["listeners"]}
    (endpoints,) = {str(one["load_assignment"]["endpoints"]) for one in found["clusters"] if one["name"] == "grpc"}
    assert listeners == {"grpc": {"address": "0.0.0.0", "port_value": 8001}, "http": {"address": "0.0.0.0", "port_value": 8000}}
    assert all(one["networks"]["default"]["aliases"] == ["bistream"] for one in servers().values()) and "'bistream'" in endpoints
    assert f"'health_check_config': {{'port_value': {image_environment()['BISTREAM__SERVE__HEALTH_PORT']}}}" in endpoints


def test_prometheus_and_grafana_find_what_they_show() -> None:
    scrapes = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    scrape = scrapes[0]
    port = int(image_environment()["BISTREAM__SERVE__HEALTH_PORT"])
    assert scrape["dns_sd_configs"][0] == {"names": ["bistream"], "type": "A", "port": port, "refresh_interval": "10s"}
    (gate,) = [one for one in scrapes if one["job_name"] == "bistream-gate"]
    assert gate["dns_sd_configs"][0] == {**scrape["dns_sd_configs"][0], "port": 8000}
    (other,) = [one for one in scrapes if one["job_name"] == "bistream-interfaces"]
    assert other["dns_sd_configs"][0]["names"] == ["interfaces"] and other["dns_sd_configs"][0]["port"] == Settings.port
    assert all(one["networks"]["default"]["aliases"] == ["bistream"] for one in servers().values())
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text(encoding="utf-8"))["datasources"][0]
    assert source["url"] == "http://prometheus:9090" and source["isDefault"]


def test_images_are_pinned() -> None:
    images = [one["image"] for name, one in compose()["services"].items() if not name.startswith(("server", "interfaces", "envoy"))]
    (base,) = re.findall(r"^ARG TRITON_IMAGE=(.*)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(images) == 2 and all(PINNED.fullmatch(image) for image in [*images, base])

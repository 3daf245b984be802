"""The chart against the program: its options, variables, ports, paths, metrics and needs exist; mistakes are told in a sentence."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from bistream.keeper.health import LIVE, METRICS, READY
from bistream.keeper.host_limits import host_needs
from bistream.metrics.catalogue import BY_NAME
from gateway.limit_options import limits_of
from gateway.settings import GateLimits
from scripts.make_model_repo import make, model_names, model_values
from scripts.serve import parse_arguments
from tests.unit.helm_chart.rendering import CHART, Release, release

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
SCALING = {"enabled": True, "prometheusAddress": "http://prometheus:9090"}


def test_lint_finds_nothing() -> None:
    found = helm_python.lint(str(CHART))
    assert not found["errors"]
    assert [message["error"] for message in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    "values, word",
    [
        ({"replicas": 3}, "replicas"),
        ({"maxSessions": 0}, "maxSessions"),
        ({"settings": {"llm_bistream": {"max_session": 4}}}, "max_session"),
        ({"settings": {"whisper": {}}}, "whisper"),
        ({"settings": {"llm_bistream": {"model_dir": "/elsewhere"}}}, "model_dir"),
        ({"apiKeys": {"keys": ["short"]}}, "keys"),
        ({"model": {"source": "nfs"}}, "source"),
        ({"model": {"directory": "../other"}}, "directory"),
        ({"podLabels": {"app.kubernetes.io/component": "envoy"}}, "app.kubernetes.io/component"),
        ({"autoscaling": {"minReplicas": 0}}, "minReplicas"),
        ({"envoy": {"image": {"tag": ""}}}, "tag"),
        ({"podDisruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable"),
        # What the schema cannot say is said by a template.
        ({"autoscaling": {"enabled": True}}, "prometheusAddress is empty; KEDA asks"),
        ({"autoscaling": {**SCALING, "minReplicas": 5, "maxReplicas": 4}}, "minReplicas is greater"),
        ({"apiKeys": {"keys": ["a-key-that-is-secret"], "existingSecret": "keys"}}, "existingSecret or keys, not both"),
        ({"model": {"persistentVolumeClaim": {"claimName": ""}}}, "name the claim that holds the checkpoint"),
        ({"kernelCache": {"type": "persistentVolumeClaim"}}, "name a claim, or set kernelCache.type"),
        ({"model": {"source": "download", "directory": ""}}, "the name of a folder that it makes"),
        ({"tls": {"clientCa": True}}, "tls.clientCa needs tls.existingSecret"),
        ({"strategy": {"maxSurge": 0, "maxUnavailable": 0}}, "no server could ever be replaced"),
        ({"ports": {"grpc": 8000}}, "grpc, http and health must differ"),
        ({"ports": {"health": 8002}}, "8002 is Triton's"),
        ({"interfaces": {"enabled": True}, "apiKeys": {"existingSecret": "keys"}}, "interfaces.keySecret is empty"),
        (
            {"interfaces": {"enabled": True}, "tls": {"existingSecret": "tls", "clientCa": True}, "envoy": {"enabled": False}},
            "interfaces.serverTls.certificateSecret is empty",
        ),
        ({"envoy": {"healthPort": 8001}}, "healthPort, ports.grpc and ports.http must differ"),
    ],
)
def test_a_mistake_in_the_values_is_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(word)):
        release(values)


def test_every_value_is_in_the_schema_and_used() -> None:
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    assert set(SCHEMA["properties"]) == {*VALUES, "global"}
    for name, value in VALUES.items():
        assert re.search(rf"\.[Vv]alues\.{name}\b", templates), name
        keys = SCHEMA["properties"][name].get("properties", {})
        if keys and name not in ("settings", "resources"):
            assert set(value) == set(keys), name
            inner = {key for key in keys if not re.search(rf"\.{key}\b", templates)}
            assert not inner - {"sizeLimit"}, f"{name}: {inner} in no template"


def options(found: Release) -> Any:
    return parse_arguments(["--model-repository", "/tmp/model_repo", *found.container["args"]])


@pytest.mark.parametrize("behind_envoy", [True, False])
def test_the_arguments_are_options_of_serve(behind_envoy: bool) -> None:
    found = release(
        {
            "envoy": {"enabled": behind_envoy},
            "tls": {"existingSecret": "tls", "clientCa": True},
            "apiKeys": {"existingSecret": "keys"},
            "drain": {"timeoutSeconds": 77, "exitTimeoutSeconds": 8},
            "serveArguments": ["--sessions-per-key", "40"],
        }
    )
    given = options(found)
    assert (given.drain_timeout_s, given.exit_timeout_s, given.start_timeout_s) == (77, 8, 600)
    assert (given.grpc_port, given.http_port, given.health_port) == (8001, 8000, 8003)
    assert {given.grpc_address, given.http_address, given.health_address} == {"0.0.0.0"}
    assert given.keys_file == Path("/secrets/keys/keys") and given.sessions_per_key == 40
    assert given.tls_client_ca == (None if behind_envoy else Path("/secrets/tls/ca.crt"))
    assert given.behind_proxy == behind_envoy and limits_of(given, GateLimits).sessions_per_address == GateLimits.sessions_per_address


def settings_of(found: Release) -> dict[str, str]:
    """As the entrypoint reads the container's variables."""
    pairs = ((name.removeprefix("BISTREAM__").split("__", 1), value) for name, value in found.environment.items() if "__" in name)
    return {f"{model.lower()}.{parameter.lower()}": value for (model, parameter), value in pairs}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"maxSessions": 64},
        {"maxSessions": 800, "voices": {"claimName": "voices"}},
        {"settings": {"cosyvoice2": {"bls_instance_num": 3, "decoupled_mode": "False"}, "cosyvoice2_bistream": {"max_sessions": 8}}},
        {"settings": {"cosyvoice2_bistream": {"max_reference_s": 12.5}, "llm_bistream": {"kv_cache_tokens": 1048576}}},
    ],
)
def test_the_models_take_the_variables_and_the_shared_memory_suffices(values: dict[str, Any], tmp_path: Path) -> None:
    found = release(values)
    filled = model_values(model_names(), {**settings_of(found), "model_dir": str(tmp_path)}, "torch")
    make(tmp_path / "repository", filled)
    needed = host_needs(tmp_path / "repository")[1].full
    (volume,) = (volume["emptyDir"] for volume in found.pod["volumes"] if volume["name"] == "shared-memory")
    size = int(volume["sizeLimit"].removesuffix("Mi"))
    assert volume["medium"] == "Memory" and needed <= size <= needed + 1 + 6
    assert filled["token2wav"]["max_sessions"] == str(values.get("maxSessions", 256))
    if "voices" in values:
        mounts = {mount["name"]: mount["mountPath"] for mount in found.container["volumeMounts"]}
        assert {filled[model].get("voices_dir") for model in ("cosyvoice2_bistream", "token2wav")} == {mounts["voices"]}


def test_probes_and_metrics_are_those_of_the_keeper() -> None:
    found = release({"serviceMonitor": {"enabled": True}})
    container = found.container
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe")} == {READY}
    assert container["livenessProbe"]["httpGet"]["path"] == LIVE
    assert found.one("ServiceMonitor", "demo-bistream")["spec"]["endpoints"][0]["path"] == METRICS
    checks = [check for cluster in found.envoy_config["static_resources"]["clusters"] for check in cluster.get("health_checks", [])]
    assert {check["http_health_check"]["path"] for check in checks} == {READY} and len(checks) == 2


def status(url: str, host: str = "localhost") -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"host": host}), timeout=240) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize(
    "sessions, share, replicas_for", [(256, 0.7, {0: 0, 179: 1, 180: 2, 10_000: 56}), (64, 1.0, {64: 1, 65: 2}), (1, 0.3, {5: 5})]
)
def test_servers_follow_open_over_admitted_sessions(sessions: int, share: float, replicas_for: dict[int, int]) -> None:
    found = release({"maxSessions": sessions, "autoscaling": {**SCALING, "targetUtilization": share}})
    trigger, load = found.one("ScaledObject", "demo-bistream")["spec"]["triggers"]
    threshold = int(trigger["metadata"]["threshold"])
    assert {open_sessions: -(-open_sessions // threshold) for open_sessions in replicas_for} == replicas_for
    for each, name in ((trigger, "bistream_sessions"), (load, "bistream_load")):
        query = each["metadata"]["query"]
        assert query == f'sum({name}{{namespace="speech", job="demo-bistream-headless"}})' and name in BY_NAME
        assert each["metadata"]["ignoreNullValues"] == "false", "no data must not look like no callers"


def test_envoy_neither_ends_nor_hides_a_session() -> None:
    config = release().envoy_config["static_resources"]
    for door in config["listeners"][:2]:
        manager = door["filter_chains"][0]["filters"][-1]["typed_config"]
        routes = [route["route"] for route in manager["route_config"]["virtual_hosts"][0]["routes"] if "route" in route]
        assert manager["stream_idle_timeout"] == "0s" and [route["timeout"] for route in routes] == ["0s"]
    for cluster in config["clusters"][:2]:
        assert cluster["common_lb_config"]["healthy_panic_threshold"]["value"] == 0
        assert min(value for limits in cluster["circuit_breakers"]["thresholds"] for value in limits.values()) >= 1000
        assert cluster["ignore_health_on_host_removal"]
        policy = cluster["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"]
        assert policy["@type"].endswith(".LeastRequest")


def test_a_change_of_the_keys_or_of_envoy_restarts_the_pods_that_read_it() -> None:
    def annotations(values: dict[str, Any], which: str) -> Any:
        found = release(values)
        deployment = found.server if which == "server" else found.envoy
        assert deployment is not None
        return deployment["spec"]["template"]["metadata"]["annotations"]

    one, other = ({"apiKeys": {"keys": [f"a-key-that-is-secret-{number}"]}} for number in "12")
    assert annotations(one, "server") != annotations(other, "server")
    assert annotations({}, "envoy") != annotations({"ports": {"http": 9000}}, "envoy")

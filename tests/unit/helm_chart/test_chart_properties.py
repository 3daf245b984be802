"""For any combination of values the chart renders, every object is valid, and the objects fit each other and the program."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from interfaces.__main__ import FAREWELL_S
from interfaces.options import parse_arguments
from tests.unit.helm_chart.rendering import KUBERNETES, Release, release, strings, validate

KEY = "a-key-that-is-secret"
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,51}[a-z0-9]", fullmatch=True)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "llm_bistream": st.fixed_dictionaries({}, optional={"kv_cache_tokens": st.integers(0, 2**31), "device": st.just("cuda:0")}),
        "token2wav": st.fixed_dictionaries({}, optional={"max_sessions": st.integers(1, 10**6), "device": st.just("cuda:1")}),
        "cosyvoice2": st.fixed_dictionaries(
            {}, optional={"decoupled_mode": st.sampled_from(["True", "False"]), "drain_timeout_s": st.floats(0, 1)}
        ),
    },
)
TOGGLE = st.booleans()
PORTS = st.integers(1024, 60_000).filter(lambda port: port not in (8002, 9901))


@st.composite
def values(draw: st.DrawFn) -> dict[str, Any]:
    grpc, http, health, proxy = draw(st.lists(PORTS, min_size=4, max_size=4, unique=True))
    keys = draw(st.sampled_from([{}, {"keys": [KEY, f"{KEY}2 anna"]}, {"existingSecret": "my-keys"}]))
    tls = draw(st.sampled_from([{}, {"existingSecret": "my-tls"}, {"existingSecret": "my-tls", "clientCa": True}]))
    low = draw(st.integers(1, 40))
    has_envoy = draw(TOGGLE)
    source = draw(st.sampled_from(["persistentVolumeClaim", "hostPath", "download"]))
    return {
        "replicaCount": draw(st.integers(0, 40)),
        "maxSessions": draw(st.integers(1, 2000)),
        "settings": draw(SETTINGS),
        "serveArguments": draw(st.sampled_from([[], ["--mps=off", "--max-text-bytes=32000"]])),
        "extraEnv": draw(st.sampled_from([[], [{"name": "TZ", "value": "UTC"}]])),
        "startTimeoutSeconds": draw(st.integers(1, 3600)),
        "drain": {
            "preStopSeconds": draw(st.integers(0, 60)),
            "timeoutSeconds": draw(st.integers(0, 3600)),
            "exitTimeoutSeconds": draw(st.integers(1, 60)),
        },
        "gpu": {"count": draw(st.integers(0, 2)), "runtimeClassName": draw(st.sampled_from(["", "nvidia"]))},
        "nodeSelector": draw(st.sampled_from([{}, {"nvidia.com/gpu.product": "NVIDIA-H200"}])),
        "topologySpreadConstraints": draw(
            st.sampled_from([[], [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}]])
        ),
        "podLabels": draw(st.sampled_from([{}, {"team": "voice"}])),
        "podAnnotations": draw(st.sampled_from([{}, {"note": "1"}])),
        "serviceAccount": {"create": draw(TOGGLE), "name": draw(st.sampled_from(["", "speech"]))},
        "model": {
            "source": source,
            "directory": draw(st.sampled_from(["CosyVoice2-0.5B", "a/b"] + [""] * (source != "download"))),
            "download": {"claimName": draw(st.sampled_from(["", "got"]))},
        },
        "voices": {"claimName": draw(st.sampled_from(["", "voices"]))},
        "kernelCache": {
            "type": draw(st.sampled_from(["emptyDir", "hostPath", "persistentVolumeClaim"])),
            "persistentVolumeClaim": {"claimName": "kernels"},
        },
        "sharedMemory": {"sizeLimit": draw(st.sampled_from(["", "2Gi"]))},
        "apiKeys": keys,
        "tls": tls,
        "ports": {"grpc": grpc, "http": http, "health": health},
        "service": {"type": draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"])), "loadBalancerSourceRanges": ["10.0.0.0/8"]},
        "envoy": {"enabled": has_envoy, "replicaCount": draw(st.integers(0, 5)), "healthPort": proxy},
        "interfaces": {
            "enabled": draw(TOGGLE),
            "keySecret": "my-key",
            "serverTls": {"ca": draw(TOGGLE), "certificateSecret": "my-own-tls"},
            "speakers": draw(st.sampled_from([[], ["anna", "ben"]])),
            "voicesClaimName": draw(st.sampled_from(["", "uploads"])),
            "lexiconsConfigMap": draw(st.sampled_from(["", "my-lexicons"])),
            "arguments": draw(st.sampled_from([[], ["--any-voice"]])),
            "service": {"type": draw(st.sampled_from(["ClusterIP", "LoadBalancer"])), "loadBalancerSourceRanges": ["10.1.0.0/16"]},
        },
        "podDisruptionBudget": {"enabled": draw(TOGGLE), "maxUnavailable": draw(st.sampled_from([1, 3, "10%"]))},
        "serviceMonitor": {"enabled": draw(TOGGLE), "labels": {"release": "prometheus"}},
        "autoscaling": {
            "enabled": draw(TOGGLE),
            "minReplicas": low,
            "maxReplicas": draw(st.integers(low, 100)),
            "targetUtilization": draw(st.floats(0.01, 1)),
            "targetLoad": draw(st.sampled_from([0, 0.7, 1])),
            "prometheusAddress": "http://prometheus:9090",
            "authenticationRef": draw(st.sampled_from([{}, {"name": "prometheus"}])),
        },
        "networkPolicy": {
            "enabled": draw(TOGGLE),
            "clients": draw(st.sampled_from([[], [{"podSelector": {"matchLabels": {"app": "agent"}}}]])),
            "monitoring": draw(st.sampled_from([[], [{"namespaceSelector": {}}]])),
        },
    }


@settings(max_examples=8)
@given(values=values(), name=NAMES, version=st.sampled_from(KUBERNETES))
def test_any_combination_is_valid_and_fits_together(values: dict[str, Any], name: str, version: str) -> None:
    found = release(values, name)
    for each in found.objects:
        validate(each, version)
    check_names(found)
    check_selectors(found)
    check_ports(found, values)
    check_grace_periods(found, values)
    check_volumes(found)
    check_secrets(found, values)
    check_settings(found, values)
    check_toggles(found, values)
    check_interfaces(found, values)


def check_names(found: Release) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in found.objects]
    assert len(names) == len(set(names)) and all(len(name) <= 63 for _, name in names)


def check_selectors(found: Release) -> None:
    for each in found.all("Deployment"):
        assert found.pods_of(each["spec"]["selector"]["matchLabels"]) == [each], "a Deployment selects its own pods and no others"
    for each in found.all("Service"):
        assert len(found.pods_of(each["spec"]["selector"])) == 1, each["metadata"]["name"]
    for each in (*found.all("PodDisruptionBudget"), *found.all("ServiceMonitor")):
        selected = each["spec"]["selector"]["matchLabels"]
        if each["kind"] == "PodDisruptionBudget":
            assert [pod["metadata"]["name"] for pod in found.pods_of(selected)] == [each["metadata"]["name"]]
        else:
            services = [service for service in found.all("Service") if selected.items() <= service["metadata"]["labels"].items()]
            assert len(services) == 1
            ports = {port["name"] for port in services[0]["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in each["spec"]["endpoints"]} <= ports
    for each in found.all("NetworkPolicy"):
        assert [pod["metadata"]["name"] for pod in found.pods_of(each["spec"]["podSelector"]["matchLabels"])] == [each["metadata"]["name"]]
        for rule in (*each["spec"]["ingress"], *each["spec"].get("egress", [])):
            for peer in (*rule.get("from", []), *rule.get("to", [])):
                selected = peer.get("podSelector", {}).get("matchLabels", {})
                if "app.kubernetes.io/name" in selected:
                    assert len(found.pods_of(selected)) == 1
    for each in found.all("ScaledObject"):
        assert each["spec"]["scaleTargetRef"]["name"] == found.server["metadata"]["name"]
    accounts = {each["metadata"]["name"] for each in found.all("ServiceAccount")}
    used = {each["spec"]["template"]["spec"]["serviceAccountName"] for each in found.all("Deployment")}
    assert used == accounts or (not accounts and len(used) == 1)


def check_ports(found: Release, values: dict[str, Any]) -> None:
    for each in found.all("Service"):
        (pods,) = found.pods_of(each["spec"]["selector"])
        open_ports = {port["name"]: port["containerPort"] for port in pods["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert all(open_ports[port["targetPort"]] == port["port"] for port in each["spec"]["ports"])
    for each in found.all("Deployment"):
        container = each["spec"]["template"]["spec"]["containers"][0]
        names = {port["name"] for port in container["ports"]}
        assert len({port["containerPort"] for port in container["ports"]}) == len(names)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                action = container[probe].get("httpGet") or container[probe]["tcpSocket"]
                assert action["port"] in names
    for name in ("grpc", "http", "health"):
        assert f"--{name}-port={values['ports'][name]}" in found.container["args"]
    if found.envoy is not None:
        check_envoy_ports(found, found.envoy, values)


def check_envoy_ports(found: Release, envoy: dict[str, Any], values: dict[str, Any]) -> None:
    config = found.envoy_config["static_resources"]
    listening = {each["name"]: each["address"]["socket_address"]["port_value"] for each in config["listeners"]}
    container = envoy["spec"]["template"]["spec"]["containers"][0]
    assert listening == {port["name"]: port["containerPort"] for port in container["ports"]}
    headless = next(each for each in found.all("Service") if each["metadata"]["name"].endswith("-headless"))
    for cluster in config["clusters"]:
        endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        address = endpoint["address"]["socket_address"]
        if cluster["name"] != "admin":
            assert address["address"] == f"{headless['metadata']['name']}.speech.svc.cluster.local."
            assert address["port_value"] == values["ports"][cluster["name"]]
            assert endpoint["health_check_config"]["port_value"] == values["ports"]["health"]


def check_grace_periods(found: Release, values: dict[str, Any]) -> None:
    drain = values["drain"]
    least = drain["preStopSeconds"] + drain["timeoutSeconds"] + drain["exitTimeoutSeconds"] + 20
    assert found.pod["terminationGracePeriodSeconds"] >= least
    slept = found.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert slept == drain["preStopSeconds"]
    arguments = found.container["args"]
    assert f"--drain-timeout-s={drain['timeoutSeconds']}" in arguments and f"--exit-timeout-s={drain['exitTimeoutSeconds']}" in arguments
    probe = found.container["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= values["startTimeoutSeconds"] + 30
    assert found.server["spec"]["progressDeadlineSeconds"] > values["startTimeoutSeconds"]
    if found.envoy is not None:
        spec = found.envoy["spec"]["template"]["spec"]
        hook = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert f"sleep {drain['timeoutSeconds']}" in hook and spec["terminationGracePeriodSeconds"] >= drain["timeoutSeconds"] + 20


def check_volumes(found: Release) -> None:
    for each in found.all("Deployment"):
        spec = each["spec"]["template"]["spec"]
        volumes = [volume["name"] for volume in spec["volumes"]]
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        assert len(volumes) == len(set(volumes)) and set(volumes) == mounted
        for container in containers:
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths))
            security = container["securityContext"]
            assert (
                security["readOnlyRootFilesystem"]
                and not security["allowPrivilegeEscalation"]
                and security["capabilities"] == {"drop": ["ALL"]}
            )
        assert spec["securityContext"]["runAsNonRoot"] and spec["automountServiceAccountToken"] is False
    for argument in found.container["args"]:
        path = argument.partition("=")[2]
        if path.startswith("/"):
            assert any(path.startswith(f"{mount['mountPath']}/") for mount in found.container["volumeMounts"]), argument


def check_secrets(found: Release, values: dict[str, Any]) -> None:
    """Keys are in a Secret and nowhere else."""
    for each in found.objects:
        if each["kind"] != "Secret":
            assert not any(KEY in text for text in strings(each)), each["kind"]
    secrets = found.all("Secret")
    assert len(secrets) == bool(values["apiKeys"].get("keys"))
    for secret in secrets:
        assert base64.b64decode(secret["data"]["keys"]).decode().splitlines() == values["apiKeys"]["keys"]
    keys = [volume["secret"]["secretName"] for volume in found.pod["volumes"] if volume["name"] == "keys"]
    expected = [secret["metadata"]["name"] for secret in secrets] or [name for name in [values["apiKeys"].get("existingSecret")] if name]
    assert keys == expected and ("--keys-file=/secrets/keys/keys" in found.container["args"]) == bool(expected)


def check_settings(found: Release, values: dict[str, Any]) -> None:
    environment = found.environment
    for model, parameters in values["settings"].items():
        for name, value in parameters.items():
            text = environment[f"BISTREAM__{model.upper()}__{name.upper()}"]
            assert text == value if isinstance(value, str) else float(text) == value
            assert not isinstance(value, int) or text == str(value)
    assert environment["BISTREAM__LLM_BISTREAM__MAX_SESSIONS"] == str(values["maxSessions"])
    assert [entry["name"] for entry in found.container["env"]] == list(dict.fromkeys(entry["name"] for entry in found.container["env"]))


def check_toggles(found: Release, values: dict[str, Any]) -> None:
    public = found.one("Service", found.server["metadata"]["name"])["spec"]
    assert found.pods_of(public["selector"]) == [found.envoy or found.server] and {port["name"] for port in public["ports"]} == {
        "grpc",
        "http",
    }
    has_envoy, scales = values["envoy"]["enabled"], values["autoscaling"]["enabled"]
    parts = 1 + has_envoy + values["interfaces"]["enabled"]
    assert (found.envoy is not None) == has_envoy == bool(found.all("ConfigMap"))
    assert len(found.all("PodDisruptionBudget")) == values["podDisruptionBudget"]["enabled"] * parts
    assert len(found.all("ServiceMonitor")) == values["serviceMonitor"]["enabled"] * parts
    assert len(found.all("NetworkPolicy")) == values["networkPolicy"]["enabled"] * parts
    assert len(found.all("ScaledObject")) == scales and ("replicas" in found.server["spec"]) == (not scales)
    assert len(found.all("ServiceAccount")) == values["serviceAccount"]["create"]
    limits = found.container["resources"]["limits"]
    assert limits.get("nvidia.com/gpu", 0) == values["gpu"]["count"] and "memory" in limits
    gate_tls = any(argument.startswith("--tls-certificate") for argument in found.container["args"])
    assert gate_tls == (bool(values["tls"]) and not has_envoy)
    if has_envoy:
        doors = [each for each in found.envoy_config["static_resources"]["listeners"] if each["name"] != "health"]
        assert all(("transport_socket" in door["filter_chains"][0]) == bool(values["tls"]) for door in doors)
    assert ("--behind-proxy" in found.container["args"]) == has_envoy
    assert ("initContainers" in found.pod) == (values["model"]["source"] == "download")


def check_interfaces(found: Release, values: dict[str, Any]) -> None:
    given = values["interfaces"]
    assert (found.interfaces is not None) == given["enabled"]
    if found.interfaces is None:
        return
    spec = found.interfaces["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["command"][-3:] == ["python", "-m", "interfaces"]
    settings = parse_arguments([word for word in container["args"] if not word.startswith("--server-tls-")])  # their files are not here
    assert settings.server_security.tls == ("--tls-key=/secrets/tls/tls.key" in found.container["args"])
    ports = values["ports"]
    assert settings.servers == (f"{found.server['metadata']['name']}-headless.speech.svc.cluster.local:{ports['grpc']}/{ports['health']}",)
    assert settings.address == "0.0.0.0" and settings.speakers == tuple(given["speakers"])
    assert settings.drain_timeout_s == values["drain"]["timeoutSeconds"]
    assert spec["terminationGracePeriodSeconds"] >= values["drain"]["preStopSeconds"] + settings.drain_timeout_s + 2 * FAREWELL_S
    assert (settings.keys_file is not None) == bool(values["apiKeys"]) == any("valueFrom" in one for one in container["env"])
    assert (settings.tls_certificate is not None) == bool(values["tls"]) == (container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS")
    assert (settings.voices_folder is not None) == bool(given["voicesClaimName"])
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    maps = [volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "lexicons"]
    assert maps == [name for name in [given["lexiconsConfigMap"]] if name] and settings.lexicons_folder == mounts.get("lexicons")
    assert "--sessions-per-address=0" in found.container["args"], "all callers have the interfaces' address there"
    (service,) = [one for one in found.all("Service") if one["metadata"]["name"] == found.interfaces["metadata"]["name"]]
    ranges = given["service"]["loadBalancerSourceRanges"] if given["service"]["type"] == "LoadBalancer" else None
    assert service["spec"]["type"] == given["service"]["type"] and service["spec"].get("loadBalancerSourceRanges") == ranges

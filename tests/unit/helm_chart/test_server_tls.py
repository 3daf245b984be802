"""Interfaces before servers whose gates have TLS: their options, and the Secrets that these read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interfaces.options import parse_arguments
from interfaces.settings import Settings
from tests.unit.gateway.rig import certificate
from tests.unit.helm_chart.rendering import Object, Release, notes, release


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a Secret of the type kubernetes.io/tls is mounted, with its authority."""
    folder = tmp_path_factory.mktemp("secret")
    pem = certificate(folder)
    (folder / "ca.crt").write_bytes(pem.certificate.read_bytes())
    pem.certificate.rename(folder / "tls.crt")
    pem.private_key.rename(folder / "tls.key")
    return folder


def rendered(tls: dict[str, Any], behind_envoy: bool = False, **of_interfaces: Any) -> Release:
    interfaces = {"enabled": True, **of_interfaces}
    return release({"interfaces": interfaces, "tls": {"existingSecret": "speech-tls", **tls}, "envoy": {"enabled": behind_envoy}})


def pod(found: Release) -> Object:
    assert found.interfaces is not None
    spec: Object = found.interfaces["spec"]["template"]["spec"]
    return spec


def settings(found: Release, secret: Path) -> Settings:
    """As the program reads the container's arguments, with all Secrets in one folder."""
    (container,) = pod(found)["containers"]
    folders = {mount["mountPath"] for mount in container["volumeMounts"] if mount["mountPath"].startswith("/secrets/")}
    arguments = list(container["args"])
    for folder in folders:
        arguments = [argument.replace(f"={folder}/", f"={secret}/") for argument in arguments]
    return parse_arguments(arguments, {})


@pytest.mark.parametrize("has_authority", [True, False])
def test_they_trust_the_authority_of_the_secret_or_those_of_the_system(has_authority: bool, secret: Path) -> None:
    found = settings(rendered({}, serverTls={"ca": has_authority}), secret).server_security
    assert found.tls and found.ca == (str(secret / "ca.crt") if has_authority else None)
    assert found.certificate is None and found.key is None


def test_they_show_a_certificate_of_their_own_where_the_gates_want_one(secret: Path) -> None:
    release = rendered({"clientCa": True}, serverTls={"ca": True, "certificateSecret": "interfaces-tls"})
    found = settings(release, secret).server_security
    assert (found.certificate, found.key) == (str(secret / "tls.crt"), str(secret / "tls.key"))
    (container,) = pod(release)["containers"]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod(release)["volumes"] if "secret" in volume}
    folders = {mount["mountPath"]: secrets[mount["name"]] for mount in container["volumeMounts"] if mount["name"] in secrets}
    assert folders == {"/secrets/tls": "speech-tls", "/secrets/server-tls": "interfaces-tls"}
    assert "--server-tls-certificate=/secrets/server-tls/tls.crt" in container["args"]


def test_the_notes_tell_the_name_that_the_certificate_needs(secret: Path) -> None:
    (server,) = settings(rendered({}), secret).servers
    host = server.partition(":")[0]
    assert host == "demo-bistream-headless.speech.svc.cluster.local"
    assert host in notes({"tls": {"existingSecret": "speech-tls"}, "envoy": {"enabled": False}, "interfaces": {"enabled": True}})
    assert host not in notes({"tls": {"existingSecret": "speech-tls"}, "interfaces": {"enabled": True}})

"""Renders the chart with the library of Helm itself, and checks each object as ``kubernetes-validate --strict`` does."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import kubernetes_validate.utils
import yaml

from tests.unit.helm_chart.custom_resources import SCHEMAS

CHART = Path(__file__).resolve().parents[3] / "deploy/helm/bistream"
KUBERNETES = ("1.30", "1.37")  # kubeVersion of Chart.yaml, and the newest that the package knows
RELEASE, NAMESPACE = "demo", "speech"
Object = dict[str, Any]


@functools.cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(str(CHART))


def render(values: Mapping[str, Any], name: str = RELEASE) -> list[Object]:
    """Raises ``HelmError`` for values that the schema or a template refuses."""
    files = chart().render(dict(values), name=name, namespace=NAMESPACE)
    texts = [text for path, text in sorted(files.items()) if not path.endswith("NOTES.txt")]
    return [found for text in texts for found in yaml.load_all(text, Loader=_NoDuplicates) if found]


class _NoDuplicates(yaml.CSafeLoader):
    """A key that is written twice is an error, as for the API server in strict decoding."""


def _mapping(loader: _NoDuplicates, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"a key is given twice: {keys}"
    return loader.construct_mapping(node, deep=True)


_NoDuplicates.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def validate(found: Object, version: str) -> None:
    """Raises the ``ValidationError`` of the package or of jsonschema."""
    if found["kind"] in SCHEMAS:
        jsonschema.validate(found, SCHEMAS[found["kind"]])
    else:
        kubernetes_validate.validate(found, version, strict=True)


# The package reads its definitions (megabytes of JSON) for each object.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


@dataclass(frozen=True)
class Release:
    """The objects of one rendering, by kind and name."""

    objects: list[Object]

    def all(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    def named(self, kind: str, name: str) -> Object | None:
        return next((found for found in self.all(kind) if found["metadata"]["name"] == name), None)

    def one(self, kind: str, name: str) -> Object:
        found = self.named(kind, name)
        assert found is not None, f"no {kind} {name}"
        return found

    @property
    def server(self) -> Object:
        return next(found for found in self.all("Deployment") if not found["metadata"]["name"].endswith(("-envoy", "-interfaces")))

    @property
    def pod(self) -> Object:
        """The pod template's spec of the servers."""
        found: Object = self.server["spec"]["template"]["spec"]
        return found

    @property
    def container(self) -> Object:
        (found,) = self.pod["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def envoy(self) -> Object | None:
        return next((found for found in self.all("Deployment") if found["metadata"]["name"].endswith("-envoy")), None)

    @property
    def interfaces(self) -> Object | None:
        return next((found for found in self.all("Deployment") if found["metadata"]["name"].endswith("-interfaces")), None)

    @property
    def envoy_config(self) -> Object:
        (found,) = self.all("ConfigMap")
        config: Object = yaml.safe_load(found["data"]["envoy.yaml"])
        return config

    @property
    def environment(self) -> dict[str, str]:
        return {entry["name"]: entry["value"] for entry in self.container["env"] if "value" in entry}

    def pods_of(self, selector: Mapping[str, str]) -> list[Object]:
        """Deployments whose pods a selector selects."""
        return [found for found in self.all("Deployment") if selector.items() <= found["spec"]["template"]["metadata"]["labels"].items()]


def release(values: Mapping[str, Any] | None = None, name: str = RELEASE) -> Release:
    return Release(render(values or {}, name))


def notes(values: Mapping[str, Any]) -> str:
    """What Helm prints after an installation."""
    text: str = chart().render(dict(values), name=RELEASE, namespace=NAMESPACE)["bistream/templates/NOTES.txt"]
    return text


def strings(node: Any) -> Iterator[str]:
    """All keys and values that are strings."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from strings(key)
            yield from strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from strings(value)

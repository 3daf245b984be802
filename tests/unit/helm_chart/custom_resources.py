"""JSON schemas of the custom resources that the chart makes: the fields it uses, with their types; any other field is an error.

From the published definitions of KEDA 2.17 and later (``keda.sh/v1alpha1``; ``fallback.behavior`` came with 2.17, parameters of the
Prometheus scaler in keda.sh/docs, "Prometheus"; its metadata are strings) and of the Prometheus operator (``monitoring.coreos.com/v1``).
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 1}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: str, **properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def _resource(api_version: str, kind: str, spec: Schema) -> Schema:
    metadata = _object("name labels", name=TEXT, labels=TEXTS)
    return _object("apiVersion kind metadata spec", apiVersion={"const": api_version}, kind={"const": kind}, metadata=metadata, spec=spec)


_RULES = _object(
    "policies",
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies={
        "type": "array",
        "minItems": 1,
        "items": _object(
            "type value periodSeconds",
            type={"enum": ["Pods", "Percent"]},
            value=COUNT,
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        ),
    },
)
_NUMBER_TEXT: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}
_TRIGGER = _object(
    "type name metricType metadata",
    type={"const": "prometheus"},
    name=TEXT,
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=_object(
        "serverAddress query threshold",
        serverAddress=TEXT,
        query=TEXT,
        threshold=_NUMBER_TEXT,
        ignoreNullValues={"enum": ["true", "false"]},
    ),
    authenticationRef=_object("name", name=TEXT, kind={"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]}),
)
SCALED_OBJECT = _resource(
    "keda.sh/v1alpha1",
    "ScaledObject",
    _object(
        "scaleTargetRef minReplicaCount maxReplicaCount triggers",
        scaleTargetRef=_object("name", name=TEXT),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        fallback=_object(
            "failureThreshold replicas",
            failureThreshold=COUNT,
            replicas=COUNT,
            behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
        ),
        advanced=_object(
            "", horizontalPodAutoscalerConfig=_object("behavior", behavior=_object("scaleDown scaleUp", scaleDown=_RULES, scaleUp=_RULES))
        ),
        triggers={"type": "array", "minItems": 1, "items": _TRIGGER},
    ),
)
SERVICE_MONITOR = _resource(
    "monitoring.coreos.com/v1",
    "ServiceMonitor",
    _object(
        "selector endpoints",
        selector=_object("matchLabels", matchLabels=TEXTS),
        namespaceSelector=_object("matchNames", matchNames={"type": "array", "items": TEXT}),
        endpoints={
            "type": "array",
            "minItems": 1,
            "items": _object(
                "port path interval",
                port=TEXT,
                path={"type": "string", "pattern": "^/"},
                interval={"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                scheme={"enum": ["http", "https"]},
                tlsConfig=_object("insecureSkipVerify", insecureSkipVerify={"type": "boolean"}),
                authorization=_object("type credentials", type={"const": "Bearer"}, credentials=_object("name key", name=TEXT, key=TEXT)),
            ),
        },
    ),
)
SCHEMAS = {"ScaledObject": SCALED_OBJECT, "ServiceMonitor": SERVICE_MONITOR}

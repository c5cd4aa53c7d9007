"""The surroundings of pods: a Service, an account, network policies, monitoring and autoscaling."""

from jaxllm.serving.deploy.container import Object
from jaxllm.serving.deploy.installation import PORT, Installation
from jaxllm.serving.deploy.workloads import scaled_object, serving_labels
from jaxllm.serving.telemetry.catalogue import METRICS

_WAITING = "4"
"""Requests that wait per copy, on average, from which on there should be more copies."""
_KV_USAGE = "800m"
"""Likewise the share of the KV cache that running requests hold."""

_LOAD_BALANCERS = ("35.191.0.0/16", "130.211.0.0/22")
"""Where Google's load balancers probe from ("Health checks overview", docs.cloud.google.com)."""
_METADATA = "169.254.169.252/30"
"""GKE's metadata server, at .252 and .254, which gives a pod its identity."""


def service_account(installation: Installation) -> Object:
    """The pods' identity, which buckets are opened to."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": installation.metadata(),
        "automountServiceAccountToken": False,
    }


def service(installation: Installation) -> Object:
    """The address inside the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": installation.metadata(),
        "spec": {
            "selector": serving_labels(installation),
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT, "appProtocol": "http"}],
        },
    }


def network_policy(installation: Installation) -> Object:
    """In: clients of this namespace, monitoring, load balancers. Out: names, HTTPS, the metadata server, each other."""
    mine = {"podSelector": {"matchLabels": installation.labels}}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gmp-system"}}}
    balancers = [{"ipBlock": {"cidr": each}} for each in _LOAD_BALANCERS]
    ingress: list[Object] = [
        {"from": [{"podSelector": {}}, monitoring, *balancers], "ports": [{"protocol": "TCP", "port": PORT}]}
    ]
    egress: list[Object] = [
        {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]},
        {"ports": [{"protocol": "TCP", "port": 443}]},
        {
            "to": [{"ipBlock": {"cidr": _METADATA}}],
            "ports": [{"protocol": "TCP", "port": port} for port in (80, 987, 988)],
        },
    ]
    if installation.hardware.hosts > 1:
        ingress.append({"from": [mine]})
        egress.append({"to": [mine]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": installation.metadata(),
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/instance": installation.name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def disruption_budget(installation: Installation) -> Object:
    """Nodes are drained one copy at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": installation.metadata(),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": serving_labels(installation)}},
    }


def pod_monitoring(installation: Installation) -> Object:
    """Managed Service for Prometheus reads the metrics of each pod that answers."""
    return {
        "apiVersion": "monitoring.googleapis.com/v1",
        "kind": "PodMonitoring",
        "metadata": installation.metadata(),
        "spec": {
            "selector": {"matchLabels": serving_labels(installation)},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        },
    }


def autoscaler(installation: Installation) -> Object:
    """More copies where requests wait or the KV cache is full; fewer after ten quiet minutes."""
    thresholds = {"num_requests_waiting": _WAITING, "kv_cache_usage_perc": _KV_USAGE}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": installation.metadata(),
        "spec": {
            "scaleTargetRef": scaled_object(installation),
            "minReplicas": installation.replicas,
            "maxReplicas": installation.max_replicas,
            "metrics": [_pods_metric(installation, name, value) for name, value in thresholds.items()],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 60},
                "scaleDown": {
                    "stabilizationWindowSeconds": 600,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
                },
            },
        },
    }


def _pods_metric(installation: Installation, name: str, value: str) -> Object:
    assert any(each.name == name and each.kind == "gauge" for each in METRICS), name
    # As the adapter for Cloud Monitoring names what Managed Service for Prometheus has read.
    exposed = f"prometheus.googleapis.com|{installation.metrics_prefix}:{name}|gauge"
    return {
        "type": "Pods",
        "pods": {"metric": {"name": exposed}, "target": {"type": "AverageValue", "averageValue": value}},
    }

"""An inference gateway: the Gateway API's InferencePool, whose endpoint picker sends requests to the freest copy."""

from jaxllm.serving.deploy.container import Object
from jaxllm.serving.deploy.installation import PORT, Installation
from jaxllm.serving.deploy.workloads import serving_labels

PICKER_PORT = 9002
"""Where endpoint pickers listen for gateways, by their project's convention."""

GATEWAY_CLASS = "gke-l7-regional-external-managed"


def gateway_objects(installation: Installation) -> list[Object]:
    """A gateway, the pool of the copies, and the route to it; the endpoint picker is the project's own chart."""
    pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": installation.name}
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": installation.metadata(),
            "spec": {
                "gatewayClassName": GATEWAY_CLASS,
                "listeners": [{"name": "http", "protocol": "HTTP", "port": 80}],
            },
        },
        {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": installation.metadata(),
            "spec": {
                "selector": {"matchLabels": serving_labels(installation)},
                "targetPorts": [{"number": PORT}],
                "endpointPickerRef": {"name": f"{installation.name}-epp", "port": {"number": PICKER_PORT}},
            },
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": installation.metadata(),
            "spec": {
                "parentRefs": [{"name": installation.name}],
                "rules": [
                    {
                        "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                        "backendRefs": [pool],
                        # A long answer is not cut off; the server has limits of its own.
                        "timeouts": {"request": "3600s"},
                    }
                ],
            },
        },
    ]

"""All objects of an installation on Kubernetes, in the order in which they are applied."""

from jaxllm.serving.deploy.container import Object
from jaxllm.serving.deploy.environment import (
    autoscaler,
    disruption_budget,
    network_policy,
    pod_monitoring,
    service,
    service_account,
)
from jaxllm.serving.deploy.gateway import gateway_objects
from jaxllm.serving.deploy.installation import Installation
from jaxllm.serving.deploy.workloads import compile_job, workload


def kubernetes_objects(installation: Installation, *, gateway: bool = False) -> list[Object]:
    """Account, policy, address, Job where programs are compiled ahead, pods, and what watches them."""
    objects = [
        service_account(installation),
        network_policy(installation),
        service(installation),
        *([compile_job(installation)] if installation.executables is not None else []),
        *workload(installation),
        disruption_budget(installation),
        pod_monitoring(installation),
        *([autoscaler(installation)] if installation.is_scaled else []),
    ]
    return [*objects, *(gateway_objects(installation) if gateway else [])]

"""Manifests against the schemas of Kubernetes, and against the code: flags, ports, paths and metrics exist."""

import ast
from dataclasses import replace
from typing import Any

import pytest

from jaxllm.bundle import manifest
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, engine_flags
from jaxllm.serving.cli import compile as compile_command
from jaxllm.serving.cli import serve
from jaxllm.serving.deploy.hardware import Slice, slices_of
from jaxllm.serving.deploy.installation import PORT, Bucket, Installation
from jaxllm.serving.deploy.kubernetes import kubernetes_objects
from jaxllm.serving.server.router import OPERATIONS
from jaxllm.serving.telemetry.catalogue import METRICS
from tests.serving.deploy.validation import check, pods_of

ONE_OF_EACH = [
    slices_of("cpu")[0],
    slices_of("v6e", "2x4")[0],
    slices_of("v6e", "4x4")[0],
    slices_of("tpu7x", "2x2x1")[0],
    slices_of("l4")[0],
]


def installation(hardware: Slice, **changes: Any) -> Installation:
    """One with everything that may be asked for."""
    bucket = Bucket("models", "llama")
    everything = Installation(
        name="llama",
        model="/models",
        hardware=hardware,
        image="example.com/jaxllm:1",
        tensor_parallel_size=max(hardware.devices, 1),
        max_model_len=8192,
        weights=15 * 2**30,
        replicas=2,
        max_replicas=4,
        weights_bucket=bucket,
        executables=Bucket("models", "bundles") if hardware.hosts == 1 else None,
    )
    return replace(everything, **changes)


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


@pytest.mark.parametrize("hardware", ONE_OF_EACH, ids=lambda each: each.name)
@pytest.mark.parametrize("plain", [False, True])
def test_apis_take_them(hardware: Slice, plain: bool) -> None:
    changes: dict[str, Any] = {"weights_bucket": None, "executables": None, "max_replicas": 2, "api_keys": False}
    for each in kubernetes_objects(installation(hardware, **(changes if plain else {})), gateway=not plain):
        check(each)


@pytest.mark.parametrize("hardware", ONE_OF_EACH, ids=lambda each: each.name)
def test_commands_are_those_of_jaxllm(hardware: Slice) -> None:
    if hardware.hosts > 1 and "nnodes" not in {flag.name for flag in engine_flags()}:
        pytest.skip("this version has no engines of several hosts")
    commands = []
    for spec in (spec for each in kubernetes_objects(installation(hardware)) for spec in pods_of(each)):
        (container,) = spec["containers"]
        # Kubernetes puts numbers there.
        name, *flags = (text.replace("$(LWS_WORKER_INDEX)", "1") for text in container["args"])
        module = {"serve": serve, "compile": compile_command}[name]
        parser = FlagParser(prog=name)
        module.add_arguments(parser)
        args = parser.parse(flags)
        commands.append(name)
        if module is serve:
            config, options = serve.configuration(args)
            assert options.port == PORT
            assert spec["terminationGracePeriodSeconds"] > options.shutdown_timeout + 10
            assert config.parallel.device == hardware.platform
    assert commands == (["serve", "serve"] if hardware.hosts > 1 else ["compile", "serve"])


def test_probes_ask_for_what_there_is() -> None:
    public = {each.path for each in OPERATIONS if each.public}
    deployment = of_kind(kubernetes_objects(installation(slices_of("v6e")[0])), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": PORT}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == "http"
        assert container[probe]["httpGet"]["path"] in public


def test_who_compiles_at_start_has_the_time() -> None:
    def longest(**changes: Any) -> int:
        deployment = of_kind(kubernetes_objects(installation(slices_of("v6e")[0], **changes)), "Deployment")
        probe = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
        return int(probe["failureThreshold"] * probe["periodSeconds"])

    assert longest(executables=None) - longest() == 30 * 60
    assert longest() > 15 * 2**30 / 100e6


def test_monitoring_and_scaling_name_metrics_that_there_are() -> None:
    objects = kubernetes_objects(installation(slices_of("v6e")[0]))
    monitored = of_kind(objects, "PodMonitoring")["spec"]["endpoints"]
    assert {each["path"] for each in monitored} <= {each.path for each in OPERATIONS if each.public}
    gauges = {f"prometheus.googleapis.com|jaxllm:{each.name}|gauge" for each in METRICS if each.kind == "gauge"}
    scaler = of_kind(objects, "HorizontalPodAutoscaler")
    assert {each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"]} <= gauges
    # It sets their number: a manifest that is applied again may not.
    assert "replicas" not in of_kind(objects, "Deployment")["spec"]


def test_pods_have_no_rights() -> None:
    for each in kubernetes_objects(installation(slices_of("v6e")[0])):
        for spec in pods_of(each):
            assert spec["securityContext"]["runAsNonRoot"]
            assert not spec["automountServiceAccountToken"]
            rights = spec["containers"][0]["securityContext"]
            assert rights["readOnlyRootFilesystem"]
            assert not rights["allowPrivilegeEscalation"]
            assert rights["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("hardware", ONE_OF_EACH, ids=lambda each: each.name)
def test_services_find_the_pods_that_answer(hardware: Slice) -> None:
    objects = kubernetes_objects(installation(hardware))
    services = [each for each in objects if each["kind"] == "Service"]
    workload = of_kind(objects, "LeaderWorkerSet" if hardware.hosts > 1 else "Deployment")
    if hardware.hosts > 1:
        (headless,) = [each for each in services if each["spec"].get("clusterIP") == "None"]
        # LeaderWorkerSet gives its pods a subdomain of its own name, and makes that Service if there is none.
        assert headless["metadata"]["name"] == workload["metadata"]["name"]
        assert headless["spec"]["publishNotReadyAddresses"]
        template = workload["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        added = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
        assert workload["spec"]["leaderWorkerTemplate"]["size"] * hardware.chips_per_host == hardware.hosts * int(
            template["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"]
        )
    else:
        template, added = workload["spec"]["template"], {}
    (service,) = [each for each in services if each["spec"].get("clusterIP") != "None"]
    assert service["spec"]["selector"].items() <= {**template["metadata"]["labels"], **added}.items()


def test_a_job_that_compiles_is_not_served_from() -> None:
    objects = kubernetes_objects(installation(slices_of("v6e", "2x4")[0]))
    job, service = of_kind(objects, "Job"), of_kind(objects, "Service")
    assert not service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    # The compiler needs no chip.
    (spec,) = pods_of(job)
    assert "nodeSelector" not in spec
    assert "google.com/tpu" not in str(spec)
    (written,) = [each for each in spec["volumes"] if each["name"] == "bundles"]
    assert not written["csi"]["readOnly"]
    (read,) = pods_of(of_kind(objects, "Deployment"))
    assert [each["csi"]["readOnly"] for each in read["volumes"] if each["name"] == "bundles"] == [True]


def test_pods_wait_for_the_bundle_that_the_job_writes() -> None:
    objects = kubernetes_objects(installation(slices_of("v6e", "2x4")[0]))
    (waiting,) = next(pods_of(of_kind(objects, "Deployment")))["initContainers"]
    (job,) = pods_of(of_kind(objects, "Job"))
    arguments = job["containers"][0]["args"]
    folder = arguments[arguments.index("--output") + 1]
    assert repr(f"{folder}/{manifest.FILE}") in waiting["command"][-1]
    ast.parse(waiting["command"][-1])
    assert "keys" not in {each["name"] for each in job["volumes"]}


@pytest.mark.parametrize("text", ["s3://models", "gs://", "gs://Models/a", "gs://models/a/../b", "models"])
def test_wrong_buckets(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--bucket .*"):
        Bucket.parse("--bucket", text)


def test_several_hosts_have_no_bundles() -> None:
    with pytest.raises(ConfigError, match="bundles require engines on one host"):
        installation(slices_of("v6e", "4x4")[0], executables=Bucket("models", ""))


@pytest.mark.parametrize(
    ("name", "changes"), [("--name", {"name": "Llama_3"}), ("--max-replicas", {"max_replicas": 1})]
)
def test_what_kubernetes_refuses_is_refused_here(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{name}"):
        installation(slices_of("cpu")[0], **changes)


def test_unknown_hardware() -> None:
    with pytest.raises(ConfigError, match="v6e"):
        slices_of("v6")
    with pytest.raises(ConfigError, match="choose one of 1x1, 2x2"):
        slices_of("v6e", "3x3")

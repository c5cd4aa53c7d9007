"""Manifests of prefill apart from decode: their APIs take them, and their parts find each other."""

from typing import Any

import pytest

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, explicit_options, section_flags
from jaxllm.serving.cli import route, serve
from jaxllm.serving.deploy.disaggregated import COMPONENT, EVENTS_PORT, TRANSFER_PORT, disaggregated_objects
from jaxllm.serving.deploy.documents import files_of
from jaxllm.serving.deploy.hardware import Slice, slices_of
from jaxllm.serving.deploy.installation import PORT, Bucket, Installation
from jaxllm.serving.fleet.app import PROBES
from jaxllm.serving.options.fleet import RouteOptions
from tests.serving.deploy.validation import check, pods_of

HARDWARE = [slices_of("cpu")[0], slices_of("v6e", "2x4")[0], slices_of("h100")[0]]


def installation(hardware: Slice, **changes: Any) -> Installation:
    given: dict[str, Any] = {
        "name": "llama", "model": "/models", "hardware": hardware, "image": "example.com/jaxllm:1",
        "tensor_parallel_size": max(hardware.devices, 1), "weights_bucket": Bucket("models", "llama"), **changes,
    }  # fmt: skip
    return Installation(**given)


def of(objects: list[dict[str, Any]], kind: str, part: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["labels"].get(COMPONENT) == part]
    return found


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda each: each.name)
def test_apis_take_them(hardware: Slice) -> None:
    objects = disaggregated_objects(installation(hardware), 1, 2)
    for each in objects:
        check(each)
    assert len(files_of(objects)) == len(objects) + 1


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda each: each.name)
def test_commands_are_those_of_jaxllm(hardware: Slice) -> None:
    objects = disaggregated_objects(installation(hardware), 1, 2)
    for role, does in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        (spec,) = pods_of(of(objects, "LeaderWorkerSet", role))
        (container,) = spec["containers"]
        name, *flags = container["args"]
        parser = FlagParser(prog=name)
        serve.add_arguments(parser)
        config, options = serve.configuration(parser.parse(flags))
        assert (options.port, options.api_key_file) == (PORT, None)
        transfer, events = config.cache.kv_transfer, config.cache.kv_events
        assert transfer is not None
        assert events is not None
        assert (transfer.role, transfer.port, transfer.host) == (does, TRANSFER_PORT, "$(POD_IP)")
        assert events.endpoint.endswith(f":{EVENTS_PORT}")
        assert "POD_IP" in {each["name"] for each in container["env"]}
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "transfer"]
        assert transfer.secret_file == f"{mount['mountPath']}/key"


def test_the_router_finds_every_server() -> None:
    objects = disaggregated_objects(installation(HARDWARE[1]), 2, 3)
    (spec,) = pods_of(of(objects, "Deployment", "router"))
    (container,) = spec["containers"]
    name, *flags = container["args"]
    assert name == "route"
    parser = FlagParser(prog=name)
    route.add_arguments(parser)
    urls = RouteOptions(**explicit_options(parser.parse(flags), section_flags("route", RouteOptions)))
    assert "google.com/tpu" not in str(spec)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in PROBES
    for role, found in (("prefill", urls.prefill), ("decode", urls.decode)):
        workload, service = of(objects, "LeaderWorkerSet", role), of(objects, "Service", role)
        # A LeaderWorkerSet names the pods of groups of one by their number, in a subdomain of its own name.
        named = workload["metadata"]["name"]
        assert service["metadata"]["name"] == named
        assert found == tuple(f"http://{named}-{n}.{named}:{PORT}" for n in range(workload["spec"]["replicas"]))
        labels = workload["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
        assert labels["llm-d.ai/role"] == role
        assert service["spec"]["selector"].items() <= labels.items()
    (address,) = [each for each in objects if each["kind"] == "Service" and each["metadata"]["name"] == "llama"]
    labels = of(objects, "Deployment", "router")["spec"]["template"]["metadata"]["labels"]
    assert address["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize(
    ("hardware", "changes"),
    [
        (slices_of("v6e", "4x4")[0], {}),
        (HARDWARE[0], {"max_replicas": 2}),
        (HARDWARE[1], {"data_parallel_size": 2, "tensor_parallel_size": 4}),
    ],
)
def test_what_is_not_supported(hardware: Slice, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--disaggregate"):
        disaggregated_objects(installation(hardware, **changes), 1, 1)

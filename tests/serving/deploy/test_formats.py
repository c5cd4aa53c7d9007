"""Formats built on Kubernetes, and plain machines, agree with their schemas and with the code."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, engine_flags
from jaxllm.serving.cli import serve
from jaxllm.serving.deploy.examples import EXAMPLES, installation_of
from jaxllm.serving.deploy.hardware import slices_of
from jaxllm.serving.deploy.installation import Bucket, Installation
from jaxllm.serving.deploy.kserve import kserve_objects
from jaxllm.serving.deploy.kustomize import object_patch
from jaxllm.serving.deploy.ray_service import ray_service
from jaxllm.serving.deploy.skypilot import skypilot_task
from jaxllm.serving.deploy.virtual_machine import install_script, machine_files, unit
from jaxllm.serving.options.server import server_flags
from jaxllm.serving.server.router import OPERATIONS
from tests.serving.deploy.validation import check

HARDWARE = [slices_of("cpu")[0], slices_of("v6e", "2x4")[0], slices_of("h100")[1]]
PUBLIC = {each.path for each in OPERATIONS if each.public}


def installation(hardware: Any, **changes: Any) -> Installation:
    return Installation(name="llama", model="org/llama", hardware=hardware, image="image:1", max_replicas=2, **changes)


def serves(arguments: list[str]) -> None:
    """Fail where `jaxllm serve` would refuse them."""
    assert arguments[0] == "serve"
    parser = FlagParser(prog="serve")
    serve.add_arguments(parser)
    serve.configuration(parser.parse(arguments[1:]))


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda each: each.name)
@pytest.mark.parametrize("bucket", [None, Bucket("models", "llama")])
def test_kserve(hardware: Any, bucket: Bucket | None) -> None:
    runtime, service = kserve_objects(installation(hardware, weights_bucket=bucket))
    check(runtime)
    check(service)
    (container,) = runtime["spec"]["containers"]
    serves(container["args"])
    assert container["name"] == "kserve-container"
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/path"] in PUBLIC
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["storageUri"] == ("hf://org/llama" if bucket is None else "gs://models/llama")


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda each: each.name)
def test_ray_service(hardware: Any) -> None:
    found = ray_service(installation(hardware))
    check(found)
    (application,) = yaml.safe_load(found["spec"]["serveConfigV2"])["applications"]
    assert application["args"].keys() <= {flag.name for flag in (*engine_flags(), *server_flags())}
    module = application["import_path"].partition(":")[0].removeprefix("jaxllm.").replace(".", "/")
    (worker,) = found["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert module == "serving/server/ray_serve"
    chips = worker["template"]["spec"]["containers"][0]["resources"].get("limits", {})
    assert hardware.resource is None or chips[hardware.resource] == str(hardware.chips_per_host)


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda each: each.name)
def test_skypilot(hardware: Any) -> None:
    task = skypilot_task(installation(hardware))
    assert task["service"]["readiness_probe"]["path"] in PUBLIC
    program, *arguments = shlex.split(task["run"])
    assert program.endswith("bin/jaxllm")
    serves(arguments)
    assert task["secrets"] == {"JAXLLM_API_KEY": None}
    assert (
        task["resources"].get("accelerators") == {"cpu": None, "tpu": "tpu-v6e-8", "gpu": "H100:2"}[hardware.platform]
    )


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda each: each.name)
def test_the_unit_of_systemd(hardware: Any, tmp_path: Path) -> None:
    text = unit(installation(hardware))
    (command,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    program, *arguments = shlex.split(command.removeprefix("ExecStart="))
    serves(arguments)
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert int(settings["TimeoutStopSec"]) > int(arguments[arguments.index("--shutdown-timeout") + 1])
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        # It wants the programs to be there.
        (tmp_path / "jaxllm.service").write_text(
            text.replace(program, "/bin/true").replace("/usr/bin/curl", "/bin/true")
        )
        done = subprocess.run([verify, "verify", tmp_path / "jaxllm.service"], capture_output=True, text=True)  # noqa: PLW1510
        assert "jaxllm.service" not in done.stderr, done.stderr


def test_the_script_is_one() -> None:
    script = install_script(installation(HARDWARE[1]))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "EXTRA='[tpu]'" in script
    linter = shutil.which("shellcheck")
    if linter is not None:
        subprocess.run([linter, "-"], input=script, text=True, check=True)


@pytest.mark.parametrize("make", [machine_files, ray_service, skypilot_task])
def test_what_they_cannot(make: Any) -> None:
    with pytest.raises(ConfigError, match="--format"):
        make(installation(slices_of("v6e", "4x4")[0]))
    with pytest.raises(ConfigError, match="--format"):
        make(installation(HARDWARE[1], executables=Bucket("bundles", "")))


def test_patches_say_what_differs() -> None:
    old = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"x": 1, "y": {"a": 1, "b": 2}, "z": 3},
    }
    new = {**old, "spec": {"x": 1, "y": {"a": 1, "b": 3}}}
    assert object_patch(old, old) is None
    named = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    assert object_patch(old, new) == {**named, "spec": {"z": None, "y": {"b": 3}}}
    entries = [{"name": "one", "v": 1}, {"name": "two", "v": 2}]
    old, new = ({**named, "spec": {"env": each}} for each in (entries, [{"name": "two", "v": 3}]))
    changed = [{"name": "two", "v": 3}, {"$patch": "delete", "name": "one"}]
    assert object_patch(old, new) == {**named, "spec": {"env": changed}}


def test_engines_that_share_a_host_load_bundles_of_their_own_size() -> None:
    hardware = slices_of("v6e", "2x4")[0]
    four = installation(hardware, tensor_parallel_size=4, data_parallel_size=2, executables=Bucket("bundles", ""))
    assert four.engine_topology == "2x2"
    with pytest.raises(ConfigError, match="has exactly 2 chips"):
        installation(hardware, tensor_parallel_size=2, data_parallel_size=4, executables=Bucket("bundles", ""))


MANIFESTS = """
import json, sys
from jaxllm.serving.cli.main import main
for flags in json.loads(sys.argv[1]):
    print("<<manifest>>", file=sys.stderr, flush=True)
    assert main(["manifest", *flags]) == 0
"""


@pytest.mark.slow
def test_examples_are_what_a_plan_says(tmp_path: Path) -> None:
    """Of the public shapes of Llama 3; libtpu describes the slices, in a process of its own."""
    from tests.jaxllm.planning.llama import write_model

    shapes = {
        "8B": write_model(tmp_path / "8b"),
        "70B": write_model(
            tmp_path / "70b", hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, intermediate_size=28672
        ),
    }
    commands = []
    for example in EXAMPLES.values():
        folder = next(each for size, each in shapes.items() if size in example.model)
        flags = [folder, "--bucket", "gs://my-models", "--device", example.device, "--max-model-len", "8192"]
        commands.append(flags + (["--topology", "4x4"] if example.topology == "4x4" else []))
    done = subprocess.run(
        [sys.executable, "-c", MANIFESTS, json.dumps(commands)], capture_output=True, text=True, check=True
    )
    for example, said in zip(EXAMPLES.values(), done.stderr.split("<<manifest>>\n")[1:], strict=True):
        wanted = installation_of(example)
        assert f"{wanted.hardware.name}, " in said
        engines = "1 engine" if wanted.data_parallel_size == 1 else f"{wanted.data_parallel_size} engines"
        assert f"{engines} of {wanted.tensor_parallel_size}," in said

"""Engines ask a Ray cluster for places."""

import builtins
from typing import Any

import pytest

from jaxllm.config import EngineConfig, ParallelOptions
from jaxllm.errors import ConfigError
from jaxllm.serving.ipc.client.on_ray.cluster import (
    bundles_of,
    connect,
    copied_variables,
    engine_resources,
    resources_of,
)
from jaxllm.serving.ipc.client.on_ray.group import rank_order

TPUS = [{"CPU": 4.0}, {"CPU": 112.0, "TPU": 4.0}, {"CPU": 112.0, "TPU": 4.0}]
GPUS = [{"CPU": 64.0, "GPU": 8.0}]
ON_RAY = {"distributed_executor_backend": "ray", "nnodes": 2}


@pytest.mark.parametrize(
    ("options", "nodes", "wanted"),
    [
        ({"tensor_parallel_size": 4}, TPUS, {"TPU": 4}),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, TPUS, {"TPU": 4}),
        ({"data_parallel_size": 2}, TPUS, {"TPU": 4}),
        ({"data_parallel_size": 4}, TPUS, {"TPU": 2}),
        # No engine has chips of two machines, and none has three.
        ({}, TPUS, {"TPU": 4}),
        ({"data_parallel_size": 2}, [{"TPU": 3.0}, {"TPU": 3.0}], {"TPU": 2}),
        ({"data_parallel_size": 2}, GPUS, {"GPU": 4}),
        ({"tensor_parallel_size": 1}, GPUS, {"GPU": 1}),
        ({"device": "cpu"}, GPUS, {"CPU": 1}),
        ({}, [{"CPU": 2.0}], {"CPU": 1}),
        # What an autoscaler will start is not there yet.
        ({"device": "tpu", "tensor_parallel_size": 8}, [{"CPU": 4.0}], {"TPU": 8}),
    ],
)
def test_resources(options: dict[str, Any], nodes: list[dict[str, float]], wanted: dict[str, float]) -> None:
    assert engine_resources(ParallelOptions(**options), nodes, {}) == wanted


@pytest.mark.parametrize(
    ("options", "nodes", "wanted"),
    [
        ({}, TPUS, {"TPU": 4}),
        ({"tensor_parallel_size": 16}, GPUS, {"GPU": 8}),
        ({}, [*GPUS, {"GPU": 3.0}], {"GPU": 4}),
        ({"device": "cpu", "tensor_parallel_size": 8}, GPUS, {"CPU": 1}),
    ],
)
def test_resources_of_each_of_two_processes(
    options: dict[str, Any], nodes: list[dict[str, float]], wanted: dict[str, float]
) -> None:
    assert engine_resources(ParallelOptions(**options), nodes, {}, 2) == wanted


def test_only_the_first_host_has_the_head_of_a_slice() -> None:
    head = {"TPU": 4, "TPU-v6e-16-head": 1}
    config = EngineConfig.from_options({**ON_RAY, "nnodes": 3, "ray_resources": head})
    assert bundles_of(config, None) == [head, {"TPU": 4}, {"TPU": 4}]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"nnodes": None}, "set nnodes to the number of hosts"),
        ({"node_rank": 1}, "node_rank=1: omit it"),
        ({"data_parallel_size": 2}, "data_parallel_size=2"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size=3"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2: all stages must be in one process, but nnodes=2"),
    ],
)
def test_what_ray_cannot_start(options: dict[str, Any], named: str) -> None:
    config = EngineConfig.from_options({**ON_RAY, "ray_resources": {"CPU": 1}, **options})
    with pytest.raises(ConfigError, match=named):
        bundles_of(config, None)


def test_the_first_process_is_here_or_where_libtpu_has_it() -> None:
    nodes = [{"NodeID": name, "Labels": {}} for name in "abc"]
    assert rank_order(["a", "b", "c"], nodes, here="b") == [1, 0, 2]
    assert rank_order(["a", "b", "c"], nodes, here="") == [0, 1, 2]
    for node, worker in zip(nodes, ("2", "10", "0"), strict=True):
        node["Labels"] = {"ray.io/tpu-worker-id": worker}
    assert rank_order(["a", "b", "c"], nodes, here="b") == [2, 0, 1]


def test_the_processor_if_jax_is_to_use_it() -> None:
    assert engine_resources(ParallelOptions(), TPUS, {"JAX_PLATFORMS": "cpu"}) == {"CPU": 1}


def test_too_few() -> None:
    with pytest.raises(ConfigError, match="1 TPU each exceeds the 8 of the Ray cluster"):
        engine_resources(ParallelOptions(data_parallel_size=9), TPUS, {})


@pytest.mark.parametrize("amount", [0, -1, "1", None, True, float("nan")])
def test_given_resources_are_amounts(amount: Any) -> None:
    config = EngineConfig.from_options({"ray_resources": {"TPU": 4, "TPU-v6e-8-head": amount}})
    with pytest.raises(ConfigError, match=r"ray_resources: TPU-v6e-8-head=.*positive number"):
        resources_of(config, None)


def test_given_resources() -> None:
    config = EngineConfig.from_options({"ray_resources": {"TPU": 4, "TPU-v6e-8-head": 1}})
    assert resources_of(config, None) == {"TPU": 4, "TPU-v6e-8-head": 1}


def test_variables_that_are_copied() -> None:
    given = {"JAX_PLATFORMS": "cpu", "HF_TOKEN": "a", "PATH": "/bin", "TPU_WORKER_ID": "3", "HOME": "/root"}
    assert copied_variables(given) == {"JAX_PLATFORMS": "cpu", "HF_TOKEN": "a"}


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return imported(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'jaxllm\[ray\]'"):
        connect()

"""The Ray cluster: finding it, and what an engine asks of it."""

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from jaxllm.config import EngineConfig, ParallelOptions
from jaxllm.errors import ConfigError
from jaxllm.hosts.placement import refuse_stages_on_hosts

_COPIED = (
    "HF_", "HUGGING_FACE_", "JAXLLM_", "JAX_", "LIBTPU_", "NCCL_", "NUMBA_", "TOKENIZERS_", "TRANSFORMERS_", "XLA_",
)  # fmt: skip
"""Variables that begin so are set for the engines too: they say how to load and to compile, wherever that is."""
_TPU_COUNTS = (8, 4, 2, 1)
"""How many chips of one machine a process can have."""
_connecting = threading.Lock()
"""Ray connects a whole process, and only once."""


def import_ray() -> Any:
    """The module `ray`. Raises `ConfigError` when it is not installed."""
    try:
        # An extra of the package.
        import ray
    except ImportError:
        raise ConfigError("starting engines on Ray requires the ray package: pip install 'jaxllm[ray]'") from None
    return ray


def connect() -> Any:
    """The module `ray`, connected to a cluster: that of the process, of `RAY_ADDRESS`, or of this machine.

    Raises `ConfigError` when Ray is not installed or there is no cluster.
    """
    ray = import_ray()
    with _connecting:
        if not ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS", "auto")
            try:
                ray.init(address=address, logging_level="warning")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"there is no Ray cluster at {address!r} ({error}); start one with 'ray start --head', or set "
                    "RAY_ADDRESS"
                ) from error
    return ray


def bundles_of(config: EngineConfig, ray: Any) -> list[dict[str, float]]:
    """Resources that each process of an engine asks of the cluster to which `ray` is connected. Raises `ConfigError`.

    Resources whose names end in -head, which only the first host of a TPU slice has, are asked for the first process.
    """
    first = resources_of(config, ray)
    rest = {name: amount for name, amount in first.items() if not name.endswith("-head")}
    return [first, *(dict(rest) for _ in range(1, processes_of(config)))]


def processes_of(config: EngineConfig) -> int:
    """How many processes Ray is to start for an engine. Raises `ConfigError`."""
    options = config.distributed
    if options.distributed_executor_backend != "ray":
        return 1
    if options.nnodes is None:
        raise ConfigError("distributed_executor_backend='ray': set nnodes to the number of hosts of the engine")
    if options.node_rank is not None:
        raise ConfigError(f"node_rank={options.node_rank}: omit it, because Ray starts all {options.nnodes} processes")
    if options.nnodes > 1 and config.parallel.data_parallel_size > 1:
        raise ConfigError(
            f"data_parallel_size={config.parallel.data_parallel_size}: cannot be combined with "
            f"nnodes={options.nnodes}, which makes one engine of several hosts; omit it, or start several servers"
        )
    refuse_stages_on_hosts(config, options.nnodes)
    size = config.parallel.tensor_parallel_size
    if size != "auto" and size % options.nnodes:
        raise ConfigError(
            f"tensor_parallel_size={size}: must be a multiple of {options.nnodes}, the number of processes"
        )
    return options.nnodes


def resources_of(config: EngineConfig, ray: Any) -> dict[str, float]:
    """Resources that a process of an engine asks of the cluster to which `ray` is connected. Raises `ConfigError`."""
    given = config.ray.ray_resources
    if given is not None:
        return {name: _amount(name, value) for name, value in given.items()}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return engine_resources(config.parallel, nodes, os.environ, processes_of(config))


def engine_resources(
    parallel: ParallelOptions,
    nodes: Iterable[Mapping[str, float]],
    environment: Mapping[str, str],
    processes: int = 1,
) -> dict[str, float]:
    """The part of the devices of these machines that each of an engine's processes has.

    A process has devices of one machine. Raises `ConfigError`.
    """
    nodes = list(nodes)
    kind = _kind(parallel, nodes, environment)
    if kind == "CPU":
        return {"CPU": 1}
    size = parallel.tensor_parallel_size
    if size != "auto":
        # More machines may come when there is something to do for them.
        return {kind: size * parallel.pipeline_parallel_size // processes}
    there = [int(node.get(kind, 0)) for node in nodes]
    name, count = ("nnodes", processes) if processes > 1 else ("data_parallel_size", parallel.data_parallel_size)
    each = max(
        (size for size in range(1, max(there, default=0) + 1) if sum(n // size for n in there) >= count), default=0
    )
    if kind == "TPU":
        each = next((count for count in _TPU_COUNTS if count <= each), 0)
    if each == 0:
        raise ConfigError(
            f"{name}={count}: 1 {kind} each exceeds the {sum(there)} of the Ray cluster; set tensor_parallel_size or "
            "ray_resources if the cluster will grow"
        )
    return {kind: each}


def _kind(parallel: ParallelOptions, nodes: list[Mapping[str, float]], environment: Mapping[str, str]) -> str:
    """Ray's name of the devices that are to be used."""
    if parallel.device != "auto":
        return parallel.device.upper()
    if environment.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return "CPU"
    return next((kind for kind in ("TPU", "GPU") if any(node.get(kind) for node in nodes)), "CPU")


def _amount(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"ray_resources: {name}={value!r}: expected a positive number")
    return float(value)


def copied_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of this process that its engines get, on whatever machine."""
    return {name: value for name, value in environment.items() if name.startswith(_COPIED)}


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """The resources in the form that Ray takes for an actor."""
    rest = dict(resources)
    found: dict[str, Any] = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0)}
    if "memory" in rest:
        found["memory"] = rest.pop("memory")
    return {**found, "resources": rest}

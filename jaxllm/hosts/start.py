"""Bringing the processes of an engine together, and their devices under `jax.distributed`."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import jax
from jax._src.xla_bridge import backends_are_initialized

from jaxllm.config import DistributedOptions, EngineConfig
from jaxllm.errors import ConfigError, EngineError
from jaxllm.hosts.follower import FollowerGroup
from jaxllm.hosts.group import Group
from jaxllm.hosts.leader import LeaderGroup
from jaxllm.hosts.placement import DEFAULT_ADDRESS, DEFAULT_PORT, Placement, find_placement, refuse_stages_on_hosts
from jaxllm.hosts.sockets import is_loopback

logger = logging.getLogger(__name__)

SECRET = "JAXLLM_DISTRIBUTED_SECRET"
_JAX_SHUTDOWN_SECONDS = 10


def place_of(options: DistributedOptions, environment: Mapping[str, str] | None = None) -> Placement | None:
    """Which process of an engine this is; None where it is the only one. Raises `ConfigError`."""
    if options.distributed_executor_backend != "external":
        return find_placement(options, os.environ if environment is None else environment)
    if not jax.distributed.is_initialized():
        raise ConfigError(
            "distributed_executor_backend='external': call jax.distributed.initialize in every process first"
        )
    if jax.process_count() == 1:
        return None
    address, port = options.master_addr or DEFAULT_ADDRESS, options.master_port or DEFAULT_PORT
    return Placement(jax.process_count(), jax.process_index(), address, port, "jax.distributed")


def join(config: EngineConfig, environment: Mapping[str, str] | None = None) -> Group | None:
    """Meet the other processes of this engine; None where there are none. From then on, one that dies ends all.

    Raises:
        ConfigError: options contradict each other, the environment or those of the other processes.
        EngineError: not all have come in time.
    """
    options, found = config.distributed, os.environ if environment is None else environment
    place = place_of(options, found)
    if place is None:
        return None
    if config.parallel.data_parallel_size > 1:
        raise ConfigError(
            f"data_parallel_size={config.parallel.data_parallel_size} cannot be combined with nnodes={place.size}, "
            "which makes one engine of several hosts; omit one of them"
        )
    refuse_stages_on_hosts(config, place.size)
    if options.distributed_executor_backend != "external" and backends_are_initialized():
        raise ConfigError(f"nnodes={place.size}: create the engine before using JAX in this process")
    secret = secret_of(options, place, found)
    began = time.monotonic()
    kind = LeaderGroup if place.is_leader else FollowerGroup
    group = kind(place, secret)
    with closing_on_error(group):
        group.join(options.distributed_timeout_seconds)
        if options.distributed_executor_backend != "external":
            left = options.distributed_timeout_seconds - (time.monotonic() - began)
            _start_jax(place, max(1, int(left)))
    logger.info("process %d of %d: all are connected", place.rank, place.size)
    return group


def secret_of(options: DistributedOptions, place: Placement, environment: Mapping[str, str]) -> str | None:
    """The secret that all processes must know. Raises `ConfigError` where others can reach them and there is none."""
    secret = options.distributed_secret or environment.get(SECRET)
    if not secret and not is_loopback(place.address):
        raise ConfigError(
            f"master_addr={place.address!r}: port {place.port} can be reached from other machines, so the processes "
            f"need a shared secret: set {SECRET} to the same value in each"
        )
    return secret or None


@contextlib.contextmanager
def closing_on_error(group: Group) -> Iterator[None]:
    """Within it, an error ends the group, which is told the reason."""
    try:
        yield
    except BaseException as error:
        group.close(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        raise


def _start_jax(place: Placement, timeout: int) -> None:
    # JAX would end processes in its own way, with a page of errors, and wait for those that are gone.
    jax.config.update("jax_enable_recoverability", True)
    # And it would take SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)
    if not jax.config.values["jax_cpu_collectives_implementation"]:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.size,
            place.rank,
            cluster_detection_method="deactivate",
            initialization_timeout=timeout,
            shutdown_timeout_seconds=_JAX_SHUTDOWN_SECONDS,
            coordinator_bind_address=place.coordinator if is_loopback(place.address) else None,
        )
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise EngineError(f"jax.distributed at {place.coordinator} failed to start: {first}") from error


def leave(group: Group) -> None:
    """End the group, and `jax.distributed` with it: at last in the first process, whose service the others use."""
    if group.is_leader:
        group.close()
    if jax.distributed.is_initialized():
        with contextlib.suppress(RuntimeError):
            jax.distributed.shutdown()
    group.close()


def use_all_devices(config: EngineConfig, group: Group) -> EngineConfig:
    """The configuration with the number of devices that an engine of several processes has: all of them.

    JAX must not have started, or has all devices. Raises `ConfigError` for another number.
    """
    size, asked = group.place.size, config.parallel.tensor_parallel_size
    if not backends_are_initialized() and isinstance(asked, int) and config.parallel.mesh is None:
        if asked % size:
            raise ConfigError(f"tensor_parallel_size={asked}: must be a multiple of {size}, the number of processes")
        return config
    if asked == "auto" and config.parallel.mesh is None:
        count = len(jax.devices())
        return replace(config, parallel=replace(config.parallel, tensor_parallel_size=count))
    return config

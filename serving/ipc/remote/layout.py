"""Placement of engines: all here, some on other hosts, or behind an external load balancer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from jaxllm.config import MAX_ENGINES, EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.launch import launch_with_devices
from jaxllm.serving.ipc.remote.head import Head
from jaxllm.serving.ipc.remote.security import keys_of
from jaxllm.serving.options.server import ServerOptions


def arranged(config: EngineConfig, *, headless: bool) -> EngineConfig:
    """The options with `data_parallel_size` the engines behind this one server, as the flags mean it together.

    Raises `ConfigError` for flags that cannot be combined.
    """
    parallel = config.parallel
    size, start = parallel.data_parallel_size, parallel.data_parallel_start_rank
    if parallel.data_parallel_external_lb or parallel.data_parallel_rank is not None:
        return _external(config, headless=headless)
    if parallel.data_parallel_hybrid_lb or (start and not headless):
        return _hybrid(config, headless=headless)
    local = parallel.engines_here
    if headless:
        if start is None or local < 1:
            raise ConfigError("headless requires data_parallel_start_rank, and data_parallel_size_local of at least 1")
        if start + local > MAX_ENGINES:
            raise ConfigError(
                f"data_parallel_start_rank={start}: with {local} engines on this host, the number exceeds {MAX_ENGINES}"
            )
    elif local > size:
        raise ConfigError(f"data_parallel_size_local={local}: must be at most data_parallel_size={size}")
    return config


def _external(config: EngineConfig, *, headless: bool) -> EngineConfig:
    parallel = config.parallel
    size, rank = parallel.data_parallel_size, parallel.data_parallel_rank
    if rank is None:
        raise ConfigError("data_parallel_external_lb requires data_parallel_rank, the rank of this server's engine")
    if rank >= size:
        raise ConfigError(f"data_parallel_rank={rank}: must be 0 to {size - 1} with data_parallel_size={size}")
    if headless or parallel.data_parallel_hybrid_lb or parallel.data_parallel_size_local not in (None, 1):
        raise ConfigError(
            "data_parallel_rank: behind an external load balancer, each server has one engine; omit headless, "
            "data_parallel_hybrid_lb and data_parallel_size_local"
        )
    changed = replace(
        parallel,
        data_parallel_size=1,
        data_parallel_size_local=None,
        data_parallel_start_rank=rank,
        data_parallel_external_lb=True,
    )
    return replace(config, parallel=changed)


def _hybrid(config: EngineConfig, *, headless: bool) -> EngineConfig:
    parallel = config.parallel
    size, start, local = (
        parallel.data_parallel_size,
        parallel.data_parallel_start_rank or 0,
        parallel.data_parallel_size_local,
    )
    if headless:
        raise ConfigError(
            "headless and data_parallel_hybrid_lb cannot be combined: with the latter, each host has a server"
        )
    if not local:
        raise ConfigError(
            "data_parallel_hybrid_lb requires data_parallel_size_local, the number of engines on this host, of at "
            "least 1"
        )
    if start + local > size:
        raise ConfigError(
            f"data_parallel_start_rank={start}: with data_parallel_size_local={local}, ranks exceed "
            f"data_parallel_size={size}"
        )
    changed = replace(
        parallel,
        data_parallel_size=local,
        data_parallel_size_local=None,
        data_parallel_start_rank=start,
        data_parallel_hybrid_lb=True,
    )
    return replace(config, parallel=changed)


@contextmanager
def launches(config: EngineConfig, options: ServerOptions, launch: Launch) -> Iterator[Callable[[int], Launch]]:
    """How each engine is started, by its number: here, or on a host that joins. Raises `ConfigError`."""
    here = partial(launch_with_devices, launch, config)
    parallel = config.parallel
    if parallel.data_parallel_size_local is None:
        yield here
        return
    with Head(config, keys_of(options, parallel.data_parallel_address)) as head:

        def launch_of(number: int) -> Launch:
            if number < parallel.engines_here:
                return here(number)
            if number >= parallel.data_parallel_size and not head.has_place(number):
                raise ConfigError(
                    f"no host with room for engine {number} has joined: start one with --headless "
                    f"--data-parallel-start-rank {number}"
                )
            return head.launch_of(number)

        yield launch_of

"""From a configuration to a runner that is ready: weights, memory, executables."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax

from jaxllm.bundle.differences import CPU_FEATURES, MEASURED_BLOCKS
from jaxllm.config.progress import Progress, silent
from jaxllm.errors import ConfigError
from jaxllm.executor.build_common import Built, free_on_cpu, load_and_ask_compiler, split_compile_schedule, steady_pages
from jaxllm.executor.compile.cached import cached_executables
from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.compile.executables import Executables, use_compilation_cache
from jaxllm.executor.compile.first_run import first_run, run_at_start
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.identity import engine_identity
from jaxllm.executor.compile.program import ProgramSet
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.kernels.native import begin_kernels
from jaxllm.executor.memory.capacity import adapter_bytes, local_devices_of, shortened, with_slots
from jaxllm.executor.memory.memory import device_free_bytes
from jaxllm.executor.program_table import EMPTY_ADAPTERS, EMPTY_STATE
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Runner
from jaxllm.executor.sampler.table import SamplingTable
from jaxllm.executor.weights.load import open_engine_weights
from jaxllm.models.errors import ModelError

if TYPE_CHECKING:
    from jaxllm.bundle.read import Bundle
    from jaxllm.executor.sampler.compiled_processors import CompiledProcessors
    from jaxllm.hosts.follower import FollowerGroup
    from jaxllm.hosts.group import Group
    from jaxllm.hosts.leader import LeaderGroup


def build_runner(
    resolved: ResolvedConfig, progress: Progress = silent, group: "Group | None" = None
) -> tuple[ResolvedConfig, Runner, int]:
    """Load the weights, compile the steps at the same time, and allocate the cache.

    Returns the configuration, whose length may be less (see `shortened`), the runner, and the number of KV pages (of
    each data shard), the null page included. With a `group`, this is the first process of several, and the others call
    `follow`.

    Raises:
        ConfigError: the checkpoint is broken or does not match its configuration.
        CapacityError: weights and a KV cache for one longest request do not fit.
    """
    built = _build_for(resolved, progress, group)
    resolved, programs, calls = built.resolved, built.programs, built.calls
    first_run(calls.executables, "creating the KV cache", partial(_make_state, calls))
    if resolved.adapters is not None:
        first_run(calls.executables, "creating slots for adapters", partial(calls.call, EMPTY_ADAPTERS))
    runner = Runner(
        calls=calls,
        buckets=programs.buckets,
        shape=programs.shape,
        sampling=SamplingTable(
            resolved.data_shards * resolved.max_num_seqs, resolved.vocab_size, resolved.config.model.seed
        ),
        watch=CompilationWatch(strict=resolved.config.compile.strict_compilation),
        background=built.start_background_compilation(),
        processors=_compiled_processors(resolved),
    )
    runner.warm_up(run_at_start(resolved.platform, built.at_start) or programs.buckets.all[:1])
    calls.start_clock()
    return resolved, runner, built.num_pages


def _compiled_processors(resolved: ResolvedConfig) -> "CompiledProcessors | None":
    if not resolved.processors:
        return None
    # Most engines have none: starts are faster without the import.
    from jaxllm.executor.sampler.compiled_processors import CompiledProcessors

    return CompiledProcessors.of(resolved)


def follow(resolved: ResolvedConfig, group: "FollowerGroup", progress: Progress = silent) -> None:
    """Do what `build_runner` does, and then what the runner of the first process does, until that ends.

    Raises like `build_runner`, and `EngineError` when the first process fails.
    """
    built = _build_for(resolved, progress, group)
    background = built.start_background_compilation()
    try:
        for call in group.calls():
            built.calls.repeat(call.name, [each.array() for each in call.arrays])
    finally:
        if background is not None:
            background.stop()
    built.calls.close()


def _build_for(resolved: ResolvedConfig, progress: Progress, group: "Group | None") -> Built:
    cache = use_compilation_cache(resolved.config.compile.compilation_cache_dir)
    try:
        wait_for_kernels = begin_kernels(resolved, cache)
        if resolved.stages:
            # Most engines have one: starts are faster without the import.
            from jaxllm.executor.pipeline.build import build_stages

            return build_stages(resolved, progress, wait_for_kernels, cache)
        if resolved.config.compile.executables is not None:
            # Most engines have no bundle: starts are faster without the import.
            from jaxllm.bundle.read import Bundle

            bundle = Bundle.open(resolved.config.compile.executables)
            pages, windows = bundle.manifest.num_pages, bundle.manifest.num_windows
            resolved = replace(resolved, num_snapshots=bundle.manifest.num_snapshots, sound_windows=windows)
            return _build(resolved, pages, None, progress, wait_for_kernels, bundle=bundle, group=group)
        if resolved.platform == "cpu":
            # Nothing that a step needs is taken from the cache's share, so the size can be known first.
            resolved, pages = _sized(resolved, free_on_cpu(resolved), cache, group)
            return _build(resolved, pages, None, progress, wait_for_kernels, cache=cache, group=group)
        model, beside = load_and_ask_compiler(resolved, open_engine_weights(resolved), cache, progress)
        free = device_free_bytes(local_devices_of(resolved), resolved.config.cache.gpu_memory_utilization, beside)
        free -= adapter_bytes(resolved)
        resolved, pages = _sized(resolved, free, cache, group)
        return _build(resolved, pages, model, progress, wait_for_kernels, cache=cache, group=group)
    except ModelError as error:
        raise ConfigError(str(error)) from error


def _sized(
    resolved: ResolvedConfig, free: int, cache: Path | None, group: "Group | None"
) -> tuple[ResolvedConfig, int]:
    """The configuration with the length that fits, and the number of KV pages: what suits all processes."""
    if group is None:
        resolved = shortened(with_slots(resolved, free), free)
        return resolved, steady_pages(resolved, free, cache)
    free = group.smallest("free memory", free)
    resolved = shortened(with_slots(resolved, free), free)
    # What is cached here need not be cached elsewhere.
    return resolved, group.smallest("KV pages", steady_pages(resolved, free, cache))


def _build(
    resolved: ResolvedConfig,
    pages: int,
    parameters: tuple[jax.Array, ...] | None,
    progress: Progress,
    wait_for_kernels: Callable[[], None],
    *,
    bundle: "Bundle | None" = None,
    cache: Path | None = None,
    group: "Group | None" = None,
) -> Built:
    """Load what is not loaded yet, and make the executables, or take them from `bundle` or `cache`."""
    programs = generation_programs(resolved, pages)
    buckets = programs.buckets
    if group is not None:
        group.check_same("engine", _shared_identity(resolved, programs, pages))
    if bundle is None:
        executables = cached_executables(resolved, programs, pages, cache)
    else:
        # Like bundles themselves, only where an engine has one.
        from jaxllm.executor.bundles import bundled_executables, explicit_pages

        executables = bundled_executables(resolved, programs, bundle, explicit_pages(resolved))
    at_start, later = split_compile_schedule(resolved.config.compile, buckets)
    with executables.compiling(at_start, progress):
        loaded = open_engine_weights(resolved)(resolved, progress) if parameters is None else parameters
    wait_for_kernels()
    if group is not None:
        # Caches differ from host to host, and what devices do together waits for the others for a while only.
        group.gather("ready to run", None)
    return Built(resolved, pages, programs, _calls(executables, loaded, group), at_start, later)


def _calls(executables: Executables, parameters: tuple[jax.Array, ...], group: "Group | None") -> DeviceCalls:
    """The calls of this process; a leader tells the others of them."""
    if group is None or not group.is_leader:
        return DeviceCalls(executables, parameters)
    leader = cast("LeaderGroup", group)
    return DeviceCalls(executables, parameters, publish=leader.publish, explain=leader.explain)


def _shared_identity(resolved: ResolvedConfig, programs: ProgramSet[DeviceState], pages: int) -> dict[str, Any]:
    """Options that must agree in all processes of an engine. Their processors may differ."""
    model = resolved.config.model
    found = engine_identity(resolved, programs, pages) | {"seed": model.seed, "load_format": model.load_format}
    return {name: value for name, value in found.items() if name not in (CPU_FEATURES, MEASURED_BLOCKS)}


def _make_state(calls: DeviceCalls) -> None:
    calls.call(EMPTY_STATE)
    jax.block_until_ready(calls.state)

"""From a configuration to a runner that is ready: weights, memory, executables."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.bundle.read import Bundle
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.models.causal_lm import load_model
from jaxllm.models.errors import ModelError
from jaxllm.progress import Progress, silent
from jaxllm.runtime.bundles import bundled_executables
from jaxllm.runtime.largest_step import bytes_beside_cache
from jaxllm.runtime.memory.capacity import count_pages, count_steady_pages, devices_of, shortened
from jaxllm.runtime.memory.memory import cpu_free_bytes, device_free_bytes, steady
from jaxllm.runtime.native import begin_kernels
from jaxllm.runtime.programs.background import BackgroundCompilation, needed_first
from jaxllm.runtime.programs.cached import CachedExecutables, cached_executables
from jaxllm.runtime.programs.compilations import CompilationWatch
from jaxllm.runtime.programs.executables import Executables, use_compilation_cache
from jaxllm.runtime.programs.first_run import first_run, run_at_start
from jaxllm.runtime.programs.generation import generation_programs
from jaxllm.runtime.resolved import ResolvedConfig
from jaxllm.runtime.runner import Runner
from jaxllm.runtime.sampling.table import SamplingTable
from jaxllm.runtime.step import DeviceState

logger = logging.getLogger(__name__)


def build_runner(resolved: ResolvedConfig, progress: Progress = silent) -> tuple[ResolvedConfig, Runner, int]:
    """Load the weights, compile the steps at the same time, and allocate the cache.

    Returns the configuration, whose length may be less (see `shortened`), the runner, and the number of KV pages, the
    null page included.

    Raises:
        ConfigError: the checkpoint is broken or does not match its configuration.
        CapacityError: weights and a KV cache for one longest request do not fit.
    """
    cache = use_compilation_cache(resolved.config.compile.compilation_cache_dir)
    wait_for_kernels = begin_kernels(resolved, cache)
    try:
        if resolved.config.compile.executables is not None:
            bundle = Bundle.open(resolved.config.compile.executables)
            pages = bundle.manifest.num_pages
            return resolved, _build(resolved, pages, None, progress, wait_for_kernels, bundle=bundle), pages
        if resolved.platform == "cpu":
            # Nothing that a step needs is taken from the cache's share, so the size can be known first.
            free = cpu_free_bytes(resolved.config.cache.gpu_memory_utilization)
            resolved = shortened(resolved, free)
            pages = steady_pages(resolved, free, cache)
            return resolved, _build(resolved, pages, None, progress, wait_for_kernels, cache=cache), pages
        model, beside = _load_and_ask_compiler(resolved, cache, progress)
        free = device_free_bytes(devices_of(resolved), resolved.config.cache.gpu_memory_utilization, beside)
        resolved = shortened(resolved, free)
        pages = steady_pages(resolved, free, cache)
        return resolved, _build(resolved, pages, model, progress, wait_for_kernels, cache=cache), pages
    except ModelError as error:
        raise ConfigError(str(error)) from error


def steady_pages(resolved: ResolvedConfig, free_bytes: int, cache: Path | None) -> int:
    """As many KV pages as `free_bytes` hold, or a few less where an earlier start has compiled for those only.

    Free memory is never quite the same, and an engine with another number of pages has to be compiled. Raises
    `CapacityError`.
    """
    pages = count_steady_pages(resolved, free_bytes)
    try:
        fewer = count_pages(resolved, steady(steady(free_bytes, resolved.platform) - 1, resolved.platform))
    except CapacityError:
        return pages
    if cache is None or fewer == pages:
        return pages

    def is_cached(number: int) -> bool:
        programs = generation_programs(resolved, number)
        return CachedExecutables.of(cache, resolved, programs, number).folder.is_dir()

    return fewer if not is_cached(pages) and is_cached(fewer) else pages


def _load_and_ask_compiler(
    resolved: ResolvedConfig, cache: Path | None, progress: Progress
) -> tuple[tuple[jax.Array, ...], int]:
    """The parameters' leaves, and the bytes that the largest step needs beside them and the KV cache."""
    if resolved.platform == "tpu":
        # Loading compiles as well, and libtpu takes one thread at a time.
        return _load(resolved, progress), bytes_beside_cache(resolved, cache)
    with ThreadPoolExecutor(1, thread_name_prefix="compile") as pool:
        beside = pool.submit(bytes_beside_cache, resolved, cache)
        return _load(resolved, progress), beside.result()


def _load(resolved: ResolvedConfig, progress: Progress) -> tuple[jax.Array, ...]:
    """The parameters' leaves, on the device."""

    def report(done: int, total: int) -> None:
        progress("Loading weights", done, total)

    options = resolved.config.model
    model = load_model(
        resolved.folder,
        resolved.model,
        resolved.forward,
        jnp.dtype(resolved.dtype),
        options.load_format,
        options.seed,
        report,
    )
    return tuple(jax.tree.leaves(nnx.split(model)[1]))


def _build(
    resolved: ResolvedConfig,
    pages: int,
    parameters: tuple[jax.Array, ...] | None,
    progress: Progress,
    wait_for_kernels: Callable[[], None],
    *,
    bundle: Bundle | None = None,
    cache: Path | None = None,
) -> Runner:
    """Load what is not loaded yet, and make the executables, or take them from `bundle` or `cache`."""
    programs = generation_programs(resolved, pages)
    buckets = programs.buckets
    if bundle is None:
        executables = cached_executables(resolved, programs, pages, cache)
    else:
        executables = bundled_executables(resolved, programs, bundle)
    options = resolved.config.compile
    wanted = () if options.enforce_eager else buckets.all
    at_start = needed_first(buckets) if wanted and options.background_compilation else wanted
    with executables.compiling(at_start, progress):
        loaded = _load(resolved, progress) if parameters is None else parameters
    wait_for_kernels()
    later = [bucket for bucket in wanted if bucket not in at_start]
    runner = Runner(
        parameters=loaded,
        state=first_run(executables, "making the KV cache", partial(_empty_state, executables)),
        executables=executables,
        buckets=buckets,
        shape=programs.shape,
        sampling=SamplingTable(resolved.config.scheduler.max_num_seqs, resolved.vocab_size, resolved.config.model.seed),
        watch=CompilationWatch(strict=options.strict_compilation),
        background=BackgroundCompilation(executables, later) if later else None,
    )
    runner.warm_up(run_at_start(resolved.platform, at_start) or buckets.all[:1])
    return runner


def _empty_state(executables: Executables) -> DeviceState:
    return jax.block_until_ready(executables.get("empty_state")())

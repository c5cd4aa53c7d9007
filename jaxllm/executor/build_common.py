"""Parts of a start that engines of one stage and of several share, from memory to the runner."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax

from jaxllm.config import CompileOptions
from jaxllm.config.progress import Progress
from jaxllm.errors import CapacityError
from jaxllm.executor.compile.background import BackgroundCompilation, startup_buckets
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.cached import CachedExecutables
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.program import ProgramSet
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.memory.capacity import count_pages, count_steady_pages
from jaxllm.executor.memory.memory import cpu_free_bytes, steady
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.load import LoadWeights


@dataclass(frozen=True)
class Built:
    """Programs that are made and weights that are loaded, but nothing has run yet."""

    resolved: ResolvedConfig
    num_pages: int
    programs: ProgramSet[DeviceState]
    calls: DeviceCalls
    at_start: Sequence[Bucket]
    """Steps that are made."""
    later: Sequence[Bucket]
    """Steps that are to be made in the background."""

    def start_background_compilation(self) -> BackgroundCompilation | None:
        """Begin to make those."""
        return BackgroundCompilation(self.calls.executables, self.later) if self.later else None


def free_on_cpu(resolved: ResolvedConfig) -> int:
    """Bytes of the machine's memory for the KV cache of an engine, or of each data shard."""
    # Engines alongside this one have as much, and so has every data shard.
    engines = max(1, resolved.config.parallel.engines_here) * resolved.data_shards
    return cpu_free_bytes(resolved.config.cache.gpu_memory_utilization) // engines


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
        first = resolved.stage_configs[0]
        programs = generation_programs(first, number)
        return CachedExecutables.of(cache, first, programs, number).folder.is_dir()

    return fewer if not is_cached(pages) and is_cached(fewer) else pages


def load_and_ask_compiler(
    resolved: ResolvedConfig, load_weights: LoadWeights, cache: Path | None, progress: Progress
) -> tuple[tuple[jax.Array, ...], int]:
    """The parameters' leaves, and the bytes that the largest step needs besides them and the KV cache."""
    # Only here: a start on CPU need not wait for the import.
    from jaxllm.executor.largest_step import bytes_beside_cache

    if resolved.platform == "tpu":
        # Loading compiles as well, and libtpu takes one thread at a time.
        return load_weights(resolved, progress), bytes_beside_cache(resolved, cache)
    with ThreadPoolExecutor(1, thread_name_prefix="compile") as pool:
        beside = pool.submit(bytes_beside_cache, resolved, cache)
        return load_weights(resolved, progress), beside.result()


def split_compile_schedule(options: CompileOptions, buckets: Buckets) -> tuple[Sequence[Bucket], Sequence[Bucket]]:
    """Which steps are made at the start, and which in the background."""
    wanted = () if options.enforce_eager else buckets.all
    at_start = startup_buckets(buckets) if wanted and options.background_compilation else wanted
    return at_start, [bucket for bucket in wanted if bucket not in at_start]

"""From a configuration in stages to programs that are made and weights that are loaded, stage by stage."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxllm.bundle.read import Bundle
from jaxllm.config.progress import Progress
from jaxllm.executor.build_common import Built, free_on_cpu, load_and_ask_compiler, split_compile_schedule, steady_pages
from jaxllm.executor.bundles import bundled_executables, check_memory, explicit_pages
from jaxllm.executor.compile.cached import cached_executables
from jaxllm.executor.compile.executables import Executables
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.program import ProgramSet
from jaxllm.executor.device_calls import DeviceCalls, Parameters
from jaxllm.executor.memory.capacity import adapter_bytes, local_devices_of, shortened
from jaxllm.executor.memory.memory import device_free_bytes
from jaxllm.executor.pipeline.calls import EarlierStage, StagedCalls
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.load import LoadWeights, open_engine_weights


def build_stages(
    resolved: ResolvedConfig, progress: Progress, wait_for_kernels: Callable[[], None], cache: Path | None
) -> Built:
    """The parts that `build_runner` needs of an engine in stages. Raises as that does."""
    bundle, load_weights = None, open_engine_weights(resolved)
    loaded: list[Parameters] = []
    if resolved.config.compile.executables is not None:
        bundle = Bundle.open(resolved.config.compile.executables)
        pages = bundle.manifest.num_pages
    elif resolved.platform == "cpu":
        # Virtual devices share one memory, which all layers' pages take of.
        free = free_on_cpu(resolved)
        resolved = shortened(resolved, free)
        pages = steady_pages(resolved, free, cache)
    else:
        resolved, pages, loaded = _load_and_size(resolved, load_weights, progress, cache)
    programs = [generation_programs(part, pages) for part in resolved.stage_configs]
    executables = _executables(resolved, programs, pages, bundle, cache)
    at_start, later = split_compile_schedule(resolved.config.compile, programs[-1].buckets)
    with ExitStack() as compiling:
        for each in executables:
            compiling.enter_context(each.compiling(at_start, progress))
        loaded = loaded or [load_weights(part, progress) for part in resolved.stage_configs]
    wait_for_kernels()
    return Built(resolved, pages, programs[-1], _calls(executables, loaded, programs), at_start, later)


def _executables(
    resolved: ResolvedConfig,
    programs: Sequence[ProgramSet[Any]],
    pages: int,
    bundle: Bundle | None,
    cache: Path | None,
) -> list[Executables]:
    """The executables of each stage, from the bundle or the cache."""
    parts = list(zip(resolved.stage_configs, programs, strict=True))
    if bundle is None:
        return [cached_executables(part, own, pages, cache) for part, own in parts]
    asked = explicit_pages(resolved)
    bundles = [bundle.of_stage(number, len(parts)) for number in range(len(parts))]
    made = [bundled_executables(part, own, each, asked) for (part, own), each in zip(parts, bundles, strict=True)]
    if resolved.platform == "cpu":
        # Virtual devices share one memory.
        check_memory(resolved, programs, sum(each.manifest.temporary_bytes for each in bundles))
    return made


def _calls(
    executables: Sequence[Executables], loaded: Sequence[Parameters], programs: Sequence[ProgramSet[Any]]
) -> StagedCalls:
    before = []
    for index, following in enumerate(programs[1:]):
        steps = {bucket.name: following.step(bucket) for bucket in following.buckets.all}
        # After the parameters, the state and what the host packs.
        places = {name: program.arguments[3].sharding for name, program in steps.items()}
        before.append(EarlierStage(DeviceCalls(executables[index], loaded[index]), places))
    return StagedCalls(executables[-1], loaded[-1], before)


def _load_and_size(
    resolved: ResolvedConfig, load_weights: LoadWeights, progress: Progress, cache: Path | None
) -> tuple[ResolvedConfig, int, list[Parameters]]:
    """The configuration with a length, and a number of KV pages, that fit the fullest stage; and all parameters."""
    utilization = resolved.config.cache.gpu_memory_utilization
    loaded, free = [], []
    for part in resolved.stage_configs:
        parameters, beside = load_and_ask_compiler(part, load_weights, cache, progress)
        loaded.append(parameters)
        free.append(device_free_bytes(local_devices_of(part), utilization, beside) - adapter_bytes(part))
    lengths = [shortened(part, own).max_model_len for part, own in zip(resolved.stage_configs, free, strict=True)]
    resolved = replace(resolved, max_model_len=min(lengths))
    pages = min(steady_pages(part, own, cache) for part, own in zip(resolved.stage_configs, free, strict=True))
    return resolved, pages, loaded

"""The memory of a configuration on a device: weights, state, temporaries and code as the compiler lays them out."""

import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError

from jaxllm.errors import CapacityError
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.compiler import compile_lowered, is_out_of_memory
from jaxllm.executor.compile.executables import compiler_options, without_compilation_cache
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.program import Program, ProgramSet, platform_of
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.largest_step import PROVISIONAL_PAGES
from jaxllm.executor.memory.capacity import (
    adapter_bytes,
    bytes_on_device,
    count_steady_pages,
    pages_asked,
    with_slots,
)
from jaxllm.executor.memory.memory import CPU_SHARE, cpu_free_bytes, usable_bytes
from jaxllm.executor.program_table import ENCODE, HEAR, HEAR_ROWS
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.planning.hlo import parse
from jaxllm.planning.links import Network
from jaxllm.planning.schedule import ProgramCost, program_cost
from jaxllm.planning.target import TargetDevices


@dataclass(frozen=True)
class CompiledProgram:
    """The compiler's figures for a program: bytes on each device besides the arguments, and how long it took here.

    `cost` is what it takes on the chip, without kernels; None where that was not asked for.
    """

    seconds: float
    temporary_bytes: int
    code_bytes: int
    cost: ProgramCost | None = None

    @property
    def bytes(self) -> int:
        """Temporaries and code together."""
        return self.temporary_bytes + self.code_bytes


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on each device. `usable` is the part of `limit` that options allow."""

    limit: int
    usable: int
    weights: int
    state: int
    page: int
    """One page of the KV cache."""
    slot: int = 0
    """States of one request."""
    drafts: int = 0
    """What recurrent layers keep of the drafts of all requests."""

    def cache_budget(self, largest: CompiledProgram | None) -> int:
        """The memory left for KV cache and states of requests besides the largest step, negative where nothing is."""
        beside = 0 if largest is None else largest.bytes
        return self.usable - self.weights - self.state - beside


def estimate_memory(resolved: ResolvedConfig, target: TargetDevices) -> MemoryUse:
    """`measure` for accelerators without a compiler: without the padding of layouts.

    Raises `CapacityError` where nobody knows the size of their memory.
    """
    programs = generation_programs(resolved, PROVISIONAL_PAGES)
    cache = programs.state.kv_cache
    return MemoryUse(
        limit=memory_limit(resolved, target),
        usable=usable_memory(resolved, target),
        weights=bytes_on_device(programs.parameters),
        state=bytes_on_device(programs.state) - bytes_on_device(cache) + adapter_bytes(resolved),
        page=bytes_on_device(cache.pages) // (PROVISIONAL_PAGES + resolved.window_pages),
        slot=bytes_on_device(cache.states) // resolved.num_state_slots,
        drafts=bytes_on_device(cache.draft_inputs),
    )


def usable_memory(resolved: ResolvedConfig, target: TargetDevices) -> int:
    """What options allow of an accelerator, less what it holds already. Raises `CapacityError` like `memory_limit`."""
    stats = (not target.absent and target.devices[0].memory_stats()) or {}
    utilization = resolved.config.cache.gpu_memory_utilization
    return usable_bytes(memory_limit(resolved, target), resolved.platform, utilization) - stats.get("bytes_in_use", 0)


def capacity_problem(memory: MemoryUse) -> str:
    """The message where there is no room for a KV cache."""
    needed, usable = (memory.weights + memory.state) / 2**30, memory.usable / 2**30
    return f"weights and state need {needed:.1f} GiB on each device, but only {usable:.1f} GiB are usable"


def measure(resolved: ResolvedConfig, target: TargetDevices) -> MemoryUse:
    """Everything but what a step needs for itself."""
    programs = generation_programs(resolved, PROVISIONAL_PAGES)
    cache = programs.state.kv_cache
    others = replace(programs.state, kv_cache=None)
    weights = laid_out(programs, programs.parameters)
    state = laid_out(programs, others) + adapter_bytes(resolved)
    page = laid_out(programs, cache.pages) // (PROVISIONAL_PAGES + resolved.window_pages)
    slot = laid_out(programs, cache.states) // resolved.num_state_slots
    drafts = laid_out(programs, cache.draft_inputs)
    utilization = resolved.config.cache.gpu_memory_utilization
    if resolved.platform == "cpu":
        # Here the KV cache has a share of its own, from which nothing else is taken.
        usable = weights + state + cpu_free_bytes(utilization)
        return MemoryUse(memory_limit(resolved, target), usable, weights, state, page, slot, drafts)
    limit = memory_limit(resolved, target)
    return MemoryUse(limit, usable_bytes(limit, resolved.platform, utilization), weights, state, page, slot, drafts)


def laid_out(programs: ProgramSet[DeviceState], arrays: Any) -> int:
    """Bytes that a device holds of arrays, with the padding of its layouts."""
    if programs.mesh is None:
        return bytes_on_device(arrays)
    if not jax.tree.leaves(arrays):
        return 0
    # The compiler knows: these are the arguments of a program that does nothing.
    nothing = jax.jit(lambda *_: jnp.int32(0), keep_unused=True)
    try:
        lowered = nothing.lower(*jax.tree.leaves(arrays))
        stats = compile_lowered(lowered, platform_of(programs.mesh)).memory_analysis()
    except JaxRuntimeError as error:
        # Arrays that are larger than the device: the padding does not matter any more.
        if not is_out_of_memory(error):
            raise
        stats = None
    return bytes_on_device(arrays) if stats is None else int(stats.argument_size_in_bytes)


@without_compilation_cache()
def compile_step(resolved: ResolvedConfig, bucket: Bucket, network: Network | None = None) -> CompiledProgram:
    """Compile the step of a bucket with a small KV cache, whose size changes nothing but the arguments.

    With the `network` of the devices it is worked out what the step costs.

    Raises:
        CapacityError: the compiler says that the step does not fit the device.
    """
    programs = generation_programs(resolved, PROVISIONAL_PAGES)
    return _compile(resolved, programs, programs.step(bucket), f"a step of {bucket}", network)


@without_compilation_cache()
def compile_image(resolved: ResolvedConfig, patches: int, network: Network | None = None) -> CompiledProgram:
    """Compile the program that encodes images of at most so many patches; raises as `compile_step`."""
    programs = generation_programs(resolved, PROVISIONAL_PAGES)
    encode = programs.others[ENCODE.sized_name(patches)]
    return _compile(resolved, programs, encode, f"an image of {patches} patches", network)


@without_compilation_cache()
def compile_sound(resolved: ResolvedConfig, network: Network | None = None) -> CompiledProgram | None:
    """Compile the program that encodes a window of sound, where the model hears; raises as `compile_step`."""
    programs = generation_programs(resolved, PROVISIONAL_PAGES)
    names = [record.name for record in (HEAR, HEAR_ROWS) if record.name in programs.others]
    if not names:
        return None
    return _compile(resolved, programs, programs.others[names[0]], "a window of sound", network)


def _compile(
    resolved: ResolvedConfig, programs: ProgramSet[DeviceState], program: Program, what: str, network: Network | None
) -> CompiledProgram:
    options = compiler_options(programs, resolved.config.compile)
    start = time.perf_counter()
    try:
        compiled = program.compile(options)
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise CapacityError(f"{what} does not fit the device: {_first_line(error)}") from error
    seconds = time.perf_counter() - start
    stats = compiled.memory_analysis()
    if stats is None:
        raise CapacityError("this backend does not report how much memory a step needs; set kv_cache_memory_bytes")
    # On CPU code counts as nothing: it lies in memory that is not the cache's.
    cost = None if network is None else program_cost(parse(compiled.as_text() or ""), network)
    return CompiledProgram(seconds, int(stats.temp_size_in_bytes), int(stats.generated_code_size_in_bytes), cost)


@without_compilation_cache()
def sized_for(resolved: ResolvedConfig, target: TargetDevices) -> tuple[ResolvedConfig, int]:
    """The configuration with its snapshots, and its KV pages, found as an engine does. May compile the largest step.

    Raises:
        CapacityError: not even one request of the longest length fits.
    """
    cache = resolved.config.cache
    if cache.num_gpu_blocks_override is not None or cache.kv_cache_memory_bytes is not None:
        resolved = with_slots(resolved, 0)
        return resolved, pages_asked(resolved)
    if resolved.platform == "cpu":
        free = cpu_free_bytes(cache.gpu_memory_utilization)
        resolved = with_slots(resolved, free)
        return resolved, count_steady_pages(resolved, free)
    if resolved.stages:
        return resolved, min(count_steady_pages(part, _free(part, target)) for part in resolved.stage_configs)
    free = _free(resolved, target)
    resolved = with_slots(resolved, free)
    return resolved, count_steady_pages(resolved, free)


def _free(resolved: ResolvedConfig, target: TargetDevices) -> int:
    """Bytes of an accelerator for caches, besides the largest step, which is compiled."""
    buckets = generation_programs(resolved, PROVISIONAL_PAGES).buckets
    return max(measure(resolved, target).cache_budget(compile_step(resolved, buckets.largest)), 0)


def memory_limit(resolved: ResolvedConfig, target: TargetDevices) -> int:
    """Bytes of memory of one device; on CPU those that are free. Raises `CapacityError` where they are unknown."""
    if resolved.platform == "cpu":
        return int(cpu_free_bytes(1.0) / CPU_SHARE)
    if not target.absent:
        stats = target.devices[0].memory_stats() or {}
        if "bytes_limit" in stats:
            return int(stats["bytes_limit"])
    if target.chip is None:
        raise CapacityError(f"unknown memory size of this device: {target.devices[0].device_kind}")
    return target.chip.hbm_bytes


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]

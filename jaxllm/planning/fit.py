"""An engine's configuration that fits its devices: how many of them, and how long requests may be.

All of it is known before weights are loaded, from shapes alone, but for what a step needs for itself, which is
estimated: once the compiler has said it, `jaxllm.executor.build` counts again.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

import jax

from jaxllm.errors import CapacityError
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.devices import split_over, tensor_parallel_size
from jaxllm.executor.memory.capacity import bytes_on_device, count_pages, shortened
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.sharding import working_sizes
from jaxllm.pallas_kernels.chips import chip_of
from jaxllm.planning.advice import advise, usual_temporaries
from jaxllm.planning.memory import MemoryUse, capacity_problem, memory_limit, usable_memory
from jaxllm.planning.step_size import with_step_size, with_step_size_of_bundle
from jaxllm.planning.target import TargetDevices

logger = logging.getLogger(__name__)


def fit_here(resolved: ResolvedConfig) -> ResolvedConfig:
    """`fit` for an engine that generates on this machine's accelerators.

    Raises `CapacityError` where the model does not fit, whatever is left open; the message says what would.
    """
    if resolved.stages:
        # Their number is given. What each holds besides its weights is counted when it is built.
        for part in resolved.stage_configs:
            check_weights(part, bytes_on_device(generation_programs(part, 1).parameters))
    if resolved.config.compile.executables is not None:
        # A bundle has its number of devices and its length.
        return with_step_size_of_bundle(resolved, resolved.config.compile.executables)
    if resolved.stages:
        return resolved
    target = _this_machine()
    fitted = fit(resolved, target)
    count = len(target.devices)
    if fitted.num_devices < count:
        logger.info(
            "%d of %d devices are unused; use more of them with --tensor-parallel-size, or hide them from this "
            "process with %s",
            count - fitted.num_devices,
            count,
            "TPU_VISIBLE_CHIPS" if fitted.platform == "tpu" else "CUDA_VISIBLE_DEVICES",
        )
    return fitted


def check_weights(resolved: ResolvedConfig, weights: int) -> None:
    """Raise `CapacityError` where weights of so many bytes do not fit this machine's first accelerator."""
    target = _this_machine()
    try:
        usable = usable_memory(resolved, target)
    except CapacityError:
        return
    memory = MemoryUse(memory_limit(resolved, target), usable, weights, state=0, page=0)
    free = memory.cache_budget(None) - usual_temporaries(memory)
    if free < 0:
        would_fit = resolved.dtype == "float32" and free + weights // 2 >= 0
        raise CapacityError(capacity_problem(memory) + ("; this would fit: --dtype bfloat16" if would_fit else ""))


def _this_machine() -> TargetDevices:
    devices = tuple(jax.local_devices())
    return TargetDevices(devices, absent=False, chip=chip_of(devices[0].device_kind), topology="")


def fit(resolved: ResolvedConfig, target: TargetDevices) -> ResolvedConfig:
    """The configuration on as few devices of the target as hold it, where their number is open.

    Where none holds the model's own length, and no other was asked for, it is on all of them, and the length is what
    they hold. Raises `CapacityError` for what does not fit so either.
    """
    try:
        memory_limit(resolved, target)
    except CapacityError:
        # The device does not tell. It will once it is full.
        return resolved
    fitted, memory = choose_devices(resolved, target)
    free = memory.cache_budget(None) - usual_temporaries(memory)
    if memory.cache_budget(None) <= 0:
        raise CapacityError(_with_advice(capacity_problem(memory), fitted, target, memory))
    fitted = shortened(fitted, free)
    try:
        count_pages(fitted, max(free, 0))
    except CapacityError as error:
        raise CapacityError(_with_advice(str(error), fitted, target, memory)) from error
    return fitted


def choose_devices(resolved: ResolvedConfig, target: TargetDevices) -> tuple[ResolvedConfig, MemoryUse]:
    """The configuration on as few devices as hold the model and a longest request, and what it takes of each.

    It is on as many as the model can be split over where none is enough. Options that are given stay.
    """
    fitted, memory = resolved, None
    for sized in _sizes(resolved, target):
        fitted, memory = with_step_size(sized, target)
        try:
            count_pages(fitted, max(memory.cache_budget(None) - usual_temporaries(memory), 0))
        except CapacityError:
            continue
        if memory.cache_budget(None) > 0:
            break
    assert memory is not None
    if (fitted.max_num_seqs, fitted.max_num_batched_tokens) != (resolved.max_num_seqs, resolved.max_num_batched_tokens):
        logger.info(
            "memory is short: steps have up to %d requests and %d tokens instead of %d and %d",
            fitted.max_num_seqs,
            fitted.max_num_batched_tokens,
            resolved.max_num_seqs,
            resolved.max_num_batched_tokens,
        )
    return fitted, memory


def _sizes(resolved: ResolvedConfig, target: TargetDevices) -> Iterator[ResolvedConfig]:
    if tensor_parallel_size(resolved.config.parallel) is not None:
        yield resolved
        return
    expert_parallel = resolved.forward.expert_parallel
    for size in working_sizes(resolved.model, expert_parallel=expert_parallel):
        if size <= len(target.devices):
            mesh = split_over(
                resolved.model, target.devices, size, absent=target.absent, expert_parallel=expert_parallel
            )
            yield replace(resolved, mesh=mesh)


def _with_advice(problem: str, resolved: ResolvedConfig, target: TargetDevices, memory: MemoryUse) -> str:
    changes = advise(resolved, target, memory, None)
    return f"{problem}; this would fit: {', or '.join(changes)}" if changes else problem

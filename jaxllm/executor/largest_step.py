"""How much memory the largest step needs on each device besides weights and KV cache: the compiler knows."""

import json
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from jaxllm.errors import CapacityError
from jaxllm.executor.compile.cached import LARGEST_CACHE, CachedExecutables
from jaxllm.executor.compile.compiler import is_out_of_memory
from jaxllm.executor.compile.executables import compiler_options
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.program import Program, ProgramSet
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.program_table import ENCODE, HEAR, HEAR_ROWS
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.artifact_cache import ArtifactCache

PROVISIONAL_PAGES = 64
"""Pages of the executable that is compiled only to learn this: their number changes nothing but the arguments."""


def bytes_beside_cache(resolved: ResolvedConfig, cache: Path | None) -> int:
    """Bytes on each device of the state without KV cache, and of temporaries and code of the largest step or image.

    What the compiler said is kept in `cache` for the next start, which then does not compile for it.

    Raises:
        CapacityError: the step does not fit the device, or the backend does not tell.
    """
    programs = generation_programs(resolved, PROVISIONAL_PAGES)
    state = bytes_on_device(programs.state) - bytes_on_device(programs.state.kv_cache)
    if cache is None:
        return state + _ask_compiler(resolved, programs)
    artifacts = ArtifactCache(cache, LARGEST_CACHE)
    folder = CachedExecutables.of(cache, resolved, programs, PROVISIONAL_PAGES).folder
    name = f"{folder.name}/largest_step.json"
    known = artifacts.get(name)
    if known is not None:
        return state + int(json.loads(bytes(known)))
    found = _ask_compiler(resolved, programs)
    artifacts.put(name, json.dumps(found).encode())
    return state + found


def _ask_compiler(resolved: ResolvedConfig, programs: ProgramSet[DeviceState]) -> int:
    """Of the largest step, or of the largest image where that needs more: one follows the other."""
    bucket = programs.buckets.largest
    found = _bytes_of(programs.step(bucket), resolved, programs, f"a step of {bucket}", "max_num_batched_tokens")
    for record in (HEAR, HEAR_ROWS):
        if record.name in programs.others:
            hear = programs.others[record.name]
            found = max(found, _bytes_of(hear, resolved, programs, "a window of sound", "max_num_batched_tokens"))
    most = 0 if resolved.model.tower is None else resolved.model.tower.most_patches
    # A stage of layers that is not the first sees nothing.
    encode = programs.others.get(ENCODE.sized_name(most))
    if encode is None:
        return found
    return max(found, _bytes_of(encode, resolved, programs, f"an image of {most} patches", "max_image_patches"))


def _bytes_of(
    program: Program, resolved: ResolvedConfig, programs: ProgramSet[DeviceState], what: str, option: str
) -> int:
    """Bytes of temporaries and code of a program, which is `what` and is made smaller by `option`."""
    try:
        compiled = program.compile(compiler_options(programs, resolved.config.compile))
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise CapacityError(f"{what} does not fit the device: {str(error).splitlines()[0]}; lower {option}") from error
    memory: Any = compiled.memory_analysis()
    if memory is None:
        raise CapacityError("this backend does not report how much memory a step needs; set kv_cache_memory_bytes")
    return int(memory.temp_size_in_bytes + memory.generated_code_size_in_bytes)

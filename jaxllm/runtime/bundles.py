"""From an engine's programs to a bundle, and from a bundle to its executables."""

from collections.abc import Callable
from pathlib import Path

from jaxllm.bundle.manifest import Manifest
from jaxllm.bundle.portable import DeviceAssignment
from jaxllm.bundle.read import Bundle, BundledExecutables
from jaxllm.bundle.write import check_target, write_bundle
from jaxllm.errors import CapacityError
from jaxllm.progress import Progress, silent
from jaxllm.runtime.memory.capacity import bytes_on_device, count_pages, devices_of, local_devices_of
from jaxllm.runtime.memory.memory import CPU_SHARE, cpu_free_bytes
from jaxllm.runtime.programs.compiler import compiler_of
from jaxllm.runtime.programs.executables import Executables, without_compilation_cache
from jaxllm.runtime.programs.generation import generation_programs
from jaxllm.runtime.programs.identity import engine_identity
from jaxllm.runtime.programs.program import Executable, Program, ProgramSet
from jaxllm.runtime.resolved import ResolvedConfig
from jaxllm.runtime.step import DeviceState


def compile_bundle(resolved: ResolvedConfig, num_pages: int, folder: Path, progress: Progress = silent) -> Manifest:
    """Compile every program of an engine with so many KV pages, and write them to `folder`, whole or not at all.

    Raises:
        ConfigError: `folder` holds something else, or cannot be written.
    """
    check_target(folder)
    programs = generation_programs(resolved, num_pages)
    executables = Executables(programs, resolved.config.compile)
    with without_compilation_cache(), executables.compiling(programs.buckets.all, progress):
        pass
    made = {name: executables.get(name) for name in programs.programs}
    return write_bundle(folder, made, engine_identity(resolved, programs, num_pages), num_pages, resolved.num_snapshots)


def bundled_executables(resolved: ResolvedConfig, programs: ProgramSet[DeviceState], bundle: Bundle) -> Executables:
    """The executables of an engine's programs from a bundle; each is loaded when it is first asked for.

    Raises:
        ConfigError: the bundle was made for another engine (the message names every difference), or is corrupt.
        CapacityError: the memory that there is does not hold what the bundle was made for.
    """
    num_pages = _explicit_pages(resolved) or bundle.manifest.num_pages
    bundle.check(engine_identity(resolved, programs, num_pages), programs.programs)
    _check_memory(resolved, programs, bundle.manifest.temporary_bytes)
    saved = bundle.read(DeviceAssignment(devices_of(resolved), resolved.mesh))

    return Executables(programs, resolved.config.compile, _FromBundle(saved), "Reading executables")


class _FromBundle:
    """Provides the executables of a bundle."""

    def __init__(self, saved: BundledExecutables) -> None:
        self._saved = saved

    def __call__(self, name: str, program: Program, compile_it: Callable[[Program], Executable]) -> Executable:
        with compiler_of(program.platform):
            return self._saved.load(name, program.arguments, program.result)

    def distrust(self) -> set[str]:
        """An engine with a bundle never compiles instead."""
        return set()


def _explicit_pages(resolved: ResolvedConfig) -> int | None:
    """The number of KV pages that an option asks for, if one does."""
    cache = resolved.config.cache
    if cache.num_gpu_blocks_override is None and cache.kv_cache_memory_bytes is None:
        return None
    return count_pages(resolved, free_bytes=0)


def _check_memory(resolved: ResolvedConfig, programs: ProgramSet[DeviceState], temporary_bytes: int) -> None:
    """Raise `CapacityError` unless weights, state and temporaries fit: the bundle's KV cache was sized elsewhere."""
    needed = temporary_bytes + bytes_on_device((programs.parameters, programs.state))
    if resolved.platform == "cpu":
        free = int(cpu_free_bytes(1.0) / CPU_SHARE)
    else:
        stats = local_devices_of(resolved)[0].memory_stats() or {}
        free = stats.get("bytes_limit", needed) - stats.get("bytes_in_use", 0)
    if needed > free:
        cache = bytes_on_device(programs.state.kv_cache)
        raise CapacityError(
            f"executables={resolved.config.compile.executables}: they need {needed / 2**30:.2f} GiB of memory, "
            f"{cache / 2**30:.2f} GiB of it for the KV cache, and {free / 2**30:.2f} GiB are free; compile them anew "
            f"with a smaller kv_cache_memory_bytes"
        )

"""From an engine's programs to a bundle, and from a bundle to its executables."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxllm.bundle.manifest import Manifest, stage_prefix
from jaxllm.bundle.portable import DeviceAssignment
from jaxllm.bundle.read import Bundle, BundledExecutables
from jaxllm.bundle.write import check_target, write_bundle
from jaxllm.config.progress import Progress, silent
from jaxllm.errors import CapacityError
from jaxllm.executor.compile.compiler import compiler_of
from jaxllm.executor.compile.executables import Executables, without_compilation_cache
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.identity import engine_identity
from jaxllm.executor.compile.program import Executable, Program, ProgramSet
from jaxllm.executor.memory.capacity import bytes_on_device, devices_of, local_devices_of, pages_asked
from jaxllm.executor.memory.memory import CPU_SHARE, cpu_free_bytes
from jaxllm.executor.resolved import ResolvedConfig


def compile_bundle(resolved: ResolvedConfig, num_pages: int, folder: Path, progress: Progress = silent) -> Manifest:
    """Compile every program of an engine with so many KV pages, and write them to `folder`, whole or not at all.

    Raises:
        ConfigError: `folder` holds something else, or cannot be written.
    """
    check_target(folder)
    made: dict[str, Executable] = {}
    identities = []
    for number, part in enumerate(resolved.stage_configs):
        programs = generation_programs(part, num_pages)
        executables = Executables(programs, resolved.config.compile)
        with without_compilation_cache(), executables.compiling(programs.buckets.all, progress):
            pass
        prefix = stage_prefix(number, resolved.num_stages)
        made |= {prefix + name: executables.get(name) for name in programs.programs}
        identities.append(engine_identity(part, programs, num_pages))
    *others, last = identities
    return write_bundle(folder, made, last, num_pages, resolved.num_snapshots, others, resolved.sound_windows)


def bundled_executables(
    resolved: ResolvedConfig, programs: ProgramSet[Any], bundle: Bundle, asked_pages: int | None
) -> Executables:
    """The executables of an engine's programs from a bundle; each is loaded when it is first asked for.

    `asked_pages` are the KV pages that options ask for, see `explicit_pages`. Stages share the memory of a CPU: whoever
    has asked for those of all calls `check_memory`.

    Raises:
        ConfigError: the bundle was made for another engine (the message names every difference), or is corrupt.
        CapacityError: the memory that there is does not hold what the bundle was made for.
    """
    num_pages = asked_pages or bundle.manifest.num_pages
    bundle.check(engine_identity(resolved, programs, num_pages), programs.programs)
    if resolved.stage is None or resolved.platform != "cpu":
        check_memory(resolved, [programs], bundle.manifest.temporary_bytes)
    saved = bundle.read(DeviceAssignment(devices_of(resolved), resolved.mesh))

    return Executables(programs, resolved.config.compile, _BundleProvider(saved), "Reading executables")


class _BundleProvider:
    """Provides the executables of a bundle."""

    def __init__(self, saved: BundledExecutables) -> None:
        self._saved = saved

    def __call__(self, name: str, program: Program, compile_it: Callable[[Program], Executable]) -> Executable:
        with compiler_of(program.platform):
            return self._saved.load(name, program.arguments, program.result)

    def distrust(self) -> set[str]:
        """An engine with a bundle never compiles instead."""
        return set()


def explicit_pages(resolved: ResolvedConfig) -> int | None:
    """The number of KV pages that an option asks for, if one does. Raises `CapacityError` where they are too few."""
    cache = resolved.config.cache
    if cache.num_gpu_blocks_override is None and cache.kv_cache_memory_bytes is None:
        return None
    return pages_asked(resolved)


def check_memory(resolved: ResolvedConfig, programs: Sequence[ProgramSet[Any]], temporary_bytes: int) -> None:
    """Raise `CapacityError` unless weights, state and temporaries fit: the bundle's KV cache was sized elsewhere.

    `programs` are those of all that have one memory, with so many `temporary_bytes` together.
    """
    needed = temporary_bytes + sum(bytes_on_device((each.parameters, each.state)) for each in programs)
    if resolved.platform == "cpu":
        free = int(cpu_free_bytes(1.0) / CPU_SHARE)
    else:
        stats = local_devices_of(resolved)[0].memory_stats() or {}
        free = stats.get("bytes_limit", needed) - stats.get("bytes_in_use", 0)
    if needed > free:
        cache = sum(bytes_on_device(each.state.kv_cache) for each in programs)
        raise CapacityError(
            f"executables={resolved.config.compile.executables}: they need {needed / 2**30:.2f} GiB of memory, "
            f"{cache / 2**30:.2f} GiB of it for the KV cache, but only {free / 2**30:.2f} GiB are free; compile them "
            "again with a smaller kv_cache_memory_bytes"
        )

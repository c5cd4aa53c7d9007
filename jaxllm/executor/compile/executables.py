"""Compiles every step shape ahead of time, several at once, into JAX's persistent compilation cache."""

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from jaxllm.config import CompileOptions
from jaxllm.config.progress import Progress, silent
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.compiler import LARGE_LAYOUT
from jaxllm.executor.compile.program import Executable, Program, ProgramSet, platform_of

logger = logging.getLogger(__name__)


class Provider(Protocol):
    """Where executables come from that need not be compiled."""

    def __call__(self, name: str, program: Program, compile_it: Callable[[Program], Executable]) -> Executable:
        """The executable of a program by its name, from `compile_it` if it has to be compiled."""
        ...

    def distrust(self) -> set[str]:
        """Give none of what is cached any more. Returns the names of those that were given; empty: there is no use."""
        ...


_QUICKER: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11, 1) else {}
"""XLA's former way to compile what it fuses: in 60 % of the time for a step of 125 M parameters. Where kernels do
nearly all of the work a step takes no longer but for sampling, which with top-k and top-p takes 7 in place of 5 ms for
32 rows of a vocabulary of 32,000; where XLA does it, a prompt takes half as long again. JAX 0.11.2 has it no more."""

ENGINES = "engines"
"""Folder beneath JAX's cache, see `jaxllm.executor.compile.cached`."""


def use_compilation_cache(folder: str | None) -> Path | None:
    """Turn JAX's persistent compilation cache on, unless the process has chosen one itself.

    None means the default folder, an empty string no cache. Returns the folder beneath it in which engines keep their
    executables; None when there is no cache, or none in a local folder.
    """
    if folder == "":
        return None
    _turn_on(folder)
    chosen = jax.config.values["jax_compilation_cache_dir"]
    return Path(chosen) / ENGINES if chosen and "://" not in chosen else None


def _turn_on(folder: str | None) -> None:
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(folder) if folder else Path(cache) / "jaxllm" / "xla"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("no compilation cache: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX decides once per process whether there is a cache, and may have done so already.
    compilation_cache.reset_cache()


@contextmanager
def without_compilation_cache() -> Iterator[None]:
    """Really compile, in all threads of the process.

    On CPU, what comes out of JAX's persistent cache cannot be serialised again. For devices that are not there it
    cannot even be read.
    """
    before = jax.config.values["jax_enable_compilation_cache"]
    _use_cache(False)
    try:
        yield
    finally:
        _use_cache(before)


def _use_cache(enabled: bool) -> None:
    jax.config.update("jax_enable_compilation_cache", enabled)
    # JAX decides once per process whether there is a cache.
    compilation_cache.reset_cache()


_ON_GPU: dict[str, Any] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
    # Percent. XLA counts a donated cache three times, and would compute things again to save memory.
    "xla_gpu_memory_limit_slop_factor": 1000,
}
"""CUDA graphs, also of conditionals and loops: else the host waits for the device to read each condition. On an H100 a
step of 64 decodes (a Llama of 1 B parameters) takes 3.4 instead of 5.3 ms, one of 8 decodes 1.7 instead of 3.6."""


_ON_TPU7X: dict[str, Any] = {LARGE_LAYOUT: "0"}
"""Parameters come in tiles of 8 rows. XLA prefers tiles of 16 there, and would copy all weights in every step: 16 GiB
for Llama-3.1-70B over 8 devices (decision 031)."""


def compiler_options(programs: ProgramSet[Any], options: CompileOptions) -> dict[str, Any]:
    """Options that differ from XLA's defaults, which are its highest level."""
    platform = platform_of(programs.mesh)
    if platform == "gpu":
        return dict(_ON_GPU)
    if platform == "tpu" and _is_tpu7x(programs.mesh):
        return dict(_ON_TPU7X)
    if options.optimization_level == 3 or platform != "cpu":
        return {}
    # The lowest level is for who waits for the compiler rather than for answers.
    quicker = _QUICKER if programs.uses_native_kernels or options.optimization_level == 0 else {}
    return {"xla_backend_optimization_level": options.optimization_level, **quicker}


def _is_tpu7x(mesh: Mesh | None) -> bool:
    """Whether the devices that are compiled for are of that kind."""
    # Only here: starts elsewhere are faster without the import.
    from jaxllm.pallas_kernels.chips import CHIPS

    device = jax.devices()[0] if mesh is None else cast(jax.Device, mesh.devices.flat[0])
    return device.device_kind == CHIPS["tpu7x"].device_kind


class Executables:
    """The executables of an engine's programs, by name. They are compiled, unless `provider` has them."""

    def __init__(
        self,
        programs: ProgramSet[Any],
        options: CompileOptions,
        provider: Provider | None = None,
        stage: str = "Compiling",
    ) -> None:
        """`stage` is what progress is reported as."""
        self._programs = programs
        self._options = options
        self._provider = provider
        self._stage = stage
        self._ready: dict[str, Executable] = {}
        self._made: dict[str, tuple[float, bool]] = {}

    @property
    def made(self) -> Mapping[str, tuple[float, bool]]:
        """By name, the seconds that each took, and whether it was compiled and not read."""
        return self._made

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The shapes of steps, made or not."""
        return self._programs.buckets.all

    def sizes(self) -> list[tuple[int, int]]:
        """Bytes of each device for temporaries and code of what is made, as far as the compiler says."""
        stats = [each.memory_analysis() for each in list(self._ready.values())]
        return [
            (int(each.temp_size_in_bytes), int(each.generated_code_size_in_bytes)) for each in stats if each is not None
        ]

    @contextmanager
    def compiling(self, buckets: Iterable[Bucket], progress: Progress = silent) -> Iterator[None]:
        """Compile the step of each bucket, and everything besides the steps, during the block.

        Leaving the block waits for the rest. An exception in it (weights that cannot be loaded, say) gives up what has
        not begun. On TPU all of it is done after the block, which may compile as well. With `enforce_eager` nothing is
        compiled yet, see `get`.
        """
        left_out = {name for bucket in set(self.buckets) - {*buckets} for name in (bucket.name, bucket.plain_name)}
        names = [name for name in self._programs.programs if name not in left_out]
        with self._making([] if self._options.enforce_eager else names, progress):
            yield

    @contextmanager
    def _making(self, names: Sequence[str], progress: Progress) -> Iterator[None]:
        workers = self._options.compile_workers or os.cpu_count() or 1
        finished = itertools.count(1)
        progress(self._stage, 0, len(names))

        def make_one(name: str) -> None:
            self._make_ready(name)
            progress(self._stage, next(finished), len(names))

        with ThreadPoolExecutor(workers, thread_name_prefix="compile") as pool:
            try:
                if platform_of(self._programs.mesh) == "tpu":
                    yield
                    pending = [pool.submit(make_one, name) for name in names]
                else:
                    pending = [pool.submit(make_one, name) for name in names]
                    yield
                for future in as_completed(pending):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def has_step(self, bucket: Bucket) -> bool:
        """Whether the step of a bucket is made."""
        return self.is_made(bucket.name)

    def is_made(self, name: str) -> bool:
        """Whether the program of this name is made."""
        return name in self._ready

    def has(self, name: str) -> bool:
        """Whether there is a program of this name, made or not."""
        return name in self._programs.programs

    def get(self, name: str) -> Executable:
        """The executable of a program, made now if it was not before.

        With `enforce_eager` that is meant, and another thread does it: whatever watches this one for compilations has
        none to report.
        """
        if name not in self._ready:
            if self._options.enforce_eager:
                with ThreadPoolExecutor(1, thread_name_prefix="compile") as pool:
                    pool.submit(self._make_ready, name).result()
            else:
                self._make_ready(name)
        return self._ready[name]

    def make_again(self, why: str) -> bool:
        """Compile again what came from a cache, with a warning; False if nothing did."""
        names = set() if self._provider is None else self._provider.distrust()
        if not names:
            return False
        logger.warning("%s; the %d cached executables are compiled again", why, len(names))
        for name in names:
            self._ready.pop(name, None)
        with self._making([name for name in self._programs.programs if name in names], silent):
            pass
        return True

    def close(self) -> None:
        """Forget what was made: the code of a set of steps takes tens of MiB, however long somebody holds this."""
        self._ready.clear()

    def _make_ready(self, name: str) -> None:
        if name in self._ready:
            return
        program, began = self._programs.programs[name], time.perf_counter()
        compiled: list[Program] = []

        def compile_it(program: Program) -> Executable:
            compiled.append(program)
            return self._compile(program)

        self._ready[name] = compile_it(program) if self._provider is None else self._provider(name, program, compile_it)
        self._made[name] = time.perf_counter() - began, bool(compiled)

    def _compile(self, program: Program) -> Executable:
        return program.compile(compiler_options(self._programs, self._options))

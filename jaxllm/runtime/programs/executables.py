"""Compiles every step shape ahead of time, several at once, into JAX's persistent compilation cache."""

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxllm.config import CompileOptions
from jaxllm.progress import Progress, silent
from jaxllm.runtime.programs.buckets import Bucket
from jaxllm.runtime.programs.generation import Key, Recipe, Spec, name_of

logger = logging.getLogger(__name__)

Executable = jax.stages.Compiled
"""A compiled function, called with arrays like those of its recipe."""

Keeper = Callable[[str, Recipe, Callable[[Recipe], Executable]], Executable]
"""Gives the executable of a name (`name_of`) and a recipe, calling the function if it has to be compiled."""

_QUICKER: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11, 1) else {}
"""XLA's former way to compile what it fuses: in 60 % of the time for a step of 125 M parameters. Where kernels do
nearly all of the work a step takes no longer but for sampling, which with top-k and top-p takes 7 in place of 5 ms for
32 rows of a vocabulary of 32,000; where XLA does it, a prompt takes half as long again. JAX 0.11.2 has it no more."""

KEPT = "engines"
"""Folder beneath JAX's cache, see `jaxllm.runtime.programs.cached`."""


def use_compilation_cache(folder: str | None) -> Path | None:
    """Turn JAX's persistent compilation cache on, unless the process has chosen one itself.

    None means the default folder, an empty string no cache. Returns the folder beneath it in which engines keep their
    executables; None when there is no cache, or none in a local folder.
    """
    if folder == "":
        return None
    _turn_on(folder)
    chosen = jax.config.values["jax_compilation_cache_dir"]
    return Path(chosen) / KEPT if chosen and "://" not in chosen else None


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


class Executables:
    """The compiled step of every bucket, and the few executables beside it, which have one shape each.

    They are compiled, unless `saved` gives them: it makes the executable of a name (`name_of`) and a recipe. `kept`
    gives those of an earlier start, and keeps the others for the next.
    """

    def __init__(
        self,
        spec: Spec,
        options: CompileOptions,
        saved: Callable[[str, Recipe], Executable] | None = None,
        kept: Keeper | None = None,
    ) -> None:
        self._spec = spec
        self._options = options
        self._saved = saved
        self._kept = kept
        self._ready: dict[Key, Executable] = {}

    @contextmanager
    def compiling(self, buckets: Iterable[Bucket], progress: Progress = silent) -> Iterator[None]:
        """Compile the step of each bucket, the largest first, and everything beside the steps, during the block.

        Leaving the block waits for the rest. An exception in it (weights that cannot be loaded, say) gives up what has
        not begun.
        """
        keys = self._spec.keys(buckets)
        workers = self._options.compile_workers or os.cpu_count() or 1
        finished = itertools.count(1)
        stage = "Compiling" if self._saved is None else "Reading executables"
        progress(stage, 0, len(keys))

        def make_one(key: Key) -> None:
            self.get(key)
            progress(stage, next(finished), len(keys))

        with ThreadPoolExecutor(workers, thread_name_prefix="compile") as pool:
            try:
                pending = [pool.submit(make_one, key) for key in keys]
                yield
                for future in as_completed(pending):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def step(self, bucket: Bucket) -> Executable:
        """`(parameter leaves, state, packed) -> (SampledRows, state)`; compiled now if it was not before."""
        return self.get(bucket)

    @property
    def empty_state(self) -> Executable:
        """`() -> DeviceState`, all zeros."""
        return self.get("empty_state")

    @property
    def prompt_logprobs(self) -> Executable:
        """`(parameter leaves, hidden, first, targets) -> Logprobs`, see `make_prompt_logprobs`."""
        return self.get("prompt_logprobs")

    @property
    def listed_logprobs(self) -> Executable:
        """`(parameter leaves, hidden, packed) -> [M, K]`, see `make_listed_logprobs`."""
        return self.get("listed_logprobs")

    @property
    def sample_constrained(self) -> Executable:
        """`(parameter leaves, hidden, SamplingState, last_tokens, packed) -> ...`, see `make_sample_constrained`."""
        return self.get("sample_constrained")

    @property
    def set_row(self) -> Executable:
        """`(SamplingState, slot, counts, seen, bias) -> SamplingState`, see `jaxllm.runtime.sampling.rows.set_row`."""
        return self.get("set_row")

    @property
    def set_bias(self) -> Executable:
        """`(SamplingState, slots, token_ids, values) -> SamplingState`, see `sampling_rows.set_bias`."""
        return self.get("set_bias")

    def is_made(self, key: Key) -> bool:
        """Whether `get` would return at once."""
        return key in self._ready

    def get(self, key: Key) -> Executable:
        """The executable of `key`, made now if it was not before."""
        made = self._ready.get(key)
        if made is None:
            made = self._ready[key] = self._make(key)
        return made

    def close(self) -> None:
        """Forget what was made: the code of a set of steps takes tens of MiB, however long somebody holds this."""
        self._ready.clear()

    def _make(self, key: Key) -> Executable:
        how = self._spec.recipe(key)
        if self._saved is not None:
            return self._saved(name_of(key), how)
        if self._kept is not None:
            return self._kept(name_of(key), how, self._compile)
        return self._compile(how)

    def _compile(self, how: Recipe) -> Executable:
        return how.lower().compile(compiler_options=self.compiler_options)

    @property
    def compiler_options(self) -> dict[str, Any]:
        """What differs from XLA's defaults, which are its highest level."""
        level, mesh = self._options.optimization_level, self._spec.mesh
        platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
        if level == 3 or platform != "cpu":
            return {}
        return {"xla_backend_optimization_level": level, **(_QUICKER if self._spec.has_little_of_xla else {})}

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """The step of a bucket, traced and lowered."""
        return self._spec.recipe(bucket).lower()

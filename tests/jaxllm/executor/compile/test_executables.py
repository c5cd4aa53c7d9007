from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxllm.bundle.portable import DeviceAssignment, from_bytes, to_bytes
from jaxllm.config import CompileOptions, EngineConfig
from jaxllm.errors import EngineError
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.cached import noticing_hits
from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.compile.executables import Executables, without_compilation_cache
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.program import Program, ProgramSet
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.state_programs import set_pages

PAGES = 4096


@pytest.mark.parametrize("stack", ["loop", "scan"])
@pytest.mark.parametrize("bucket", [Bucket(1, 1), Bucket(2, 2), Bucket(64, 8)], ids=str)
def test_a_step_copies_neither_cache_nor_sampling_state(bucket: Bucket, stack: str) -> None:
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "layer_stack": stack}
    resolved = resolve_config(EngineConfig.from_options(options))
    programs = generation_programs(resolved, PAGES)
    quickly: dict[str, Any] = {"xla_backend_optimization_level": 0}
    memory = programs.step(bucket).compile(quickly).memory_analysis()
    assert memory is not None
    cache = int(np.prod(programs.state.kv_cache.pages[0].shape)) * 4
    assert cache > 200e6
    assert memory.alias_size_in_bytes > cache
    assert memory.temp_size_in_bytes < cache / 10


@pytest.fixture(scope="module")
def programs() -> ProgramSet[Any]:
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 8}
    return generation_programs(resolve_config(EngineConfig.from_options(options)), num_pages=8)


@pytest.fixture
def watch() -> Iterator[CompilationWatch]:
    watch = CompilationWatch(strict=True)
    yield watch
    watch.close()


def test_with_enforce_eager_programs_are_made_on_first_use(programs: ProgramSet[Any], watch: CompilationWatch) -> None:
    executables = Executables(programs, CompileOptions(enforce_eager=True))
    with executables.compiling(programs.buckets.all):
        pass
    assert not any(executables.has_step(bucket) for bucket in programs.buckets.all)
    with watch.watching("a call"):
        executables.get("set_pages")
    assert watch.count == 0


def test_without_it_a_program_that_is_not_made_is_a_surprise(
    programs: ProgramSet[Any], watch: CompilationWatch
) -> None:
    executables = Executables(programs, CompileOptions())
    with pytest.raises(EngineError, match=r"after warm-up for a call: .*set_pages"), watch.watching("a call"):
        executables.get("set_pages")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[None]:
    """A folder of JAX's own cache, which keeps everything."""
    wanted = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_enable_compilation_cache": True,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in wanted}
    for settings in (wanted, before):
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if settings is wanted:
            yield


def test_what_jax_has_of_a_function_is_not_saved(cache: None) -> None:
    """An executable from its cache lacks functions when it is saved and loaded, also if it is in memory by now."""
    arguments = tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((2, 16), (2,), (2, 16)))
    alike = FunctionType(set_pages.__code__, set_pages.__globals__, set_pages.__name__)
    Program(alike, arguments, 0).compile({})
    with noticing_hits() as hits:
        Program(set_pages, arguments, 0).compile({})
    assert hits
    with without_compilation_cache():
        saved = to_bytes(Program(set_pages, arguments, 0).compile({}))
    loaded = from_bytes(memoryview(saved), arguments, 0, DeviceAssignment((jax.devices()[0],), None))
    table, rows = jnp.zeros((2, 16), jnp.int32), jnp.ones((2, 16), jnp.int32)
    np.testing.assert_array_equal(loaded(table, jnp.asarray([-1, 1], jnp.int32), rows), [[0] * 16, [1] * 16])

"""Executables that engines cache for their next start."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor.build_common import steady_pages
from jaxllm.executor.compile.cached import CachedExecutables
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.program import Executable, Program
from jaxllm.executor.resolve import resolve_config
from tests.conftest import RunPython

FOUR_STARTS = """
import json, logging, sys
from pathlib import Path
import jax
from tests.e2e.driving import make_engine, request, run

logging.basicConfig(stream=sys.stderr)
work = []
def listen(event, duration, **details):
    if "/jax/core/compile/" in event and str(details.get("fun_name", "")).startswith("step_"):
        work.append((event.rsplit("/")[-1], details["fun_name"]))
jax.monitoring.register_event_duration_secs_listener(listen)

def start():
    work.clear()
    engine = make_engine(max_num_batched_tokens=8, max_model_len=64, max_num_seqs=4,
                         compilation_cache_dir=sys.argv[1], attention_backend="xla", enforce_eager=False)
    requests = [request(index, [5, 6, 7, 8 + index], max_tokens=6, temperature=0.8, seed=1) for index in range(3)]
    tokens = {name: answer.token_ids for name, answer in run(engine, requests).items()}
    engine.close()
    return {"tokens": tokens, "work": sorted(work)}

cold, warm = start(), start()
kept = next(Path(sys.argv[1]).glob("engines/*/step_8.bin"))
kept.write_bytes(kept.read_bytes()[:-1] + b"?")
broken, mended = start(), start()
print(json.dumps([cold, warm, broken, mended]))
"""


def keeper(folder: Path, **options: Any) -> tuple[CachedExecutables, Program]:
    resolved = resolve_config(EngineConfig.from_options(options))
    programs = generation_programs(resolved, 64)
    return CachedExecutables.of(folder, resolved, programs, 64), programs.programs["empty_state"]


def compile_it(how: Program) -> Executable:
    return how.lower().compile()


def never(how: Program) -> Executable:
    raise AssertionError("compiled although it was kept")


def test_a_second_start_neither_traces_nor_compiles_and_what_is_broken_is_made_anew(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = run_python("-c", FOUR_STARTS, str(tmp_path))
    assert done.returncode == 0, done.stderr
    cold, warm, broken, mended = json.loads(done.stdout.splitlines()[-1])
    assert {name.rsplit("_", 1)[0] for _, name in cold["work"]} == {"step_1", "step_8"}
    assert warm["work"] == mended["work"] == []
    assert {name.rsplit("_", 1)[0] for _, name in broken["work"]} == {"step_8"}
    assert "step_8.bin cannot be used and is rebuilt" in done.stderr
    assert cold["tokens"] == warm["tokens"] == broken["tokens"] == mended["tokens"]


def test_what_jax_found_in_its_own_cache_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On CPU such an executable serialises without an error, but may lack functions when it is loaded again."""
    kept, how = keeper(tmp_path)

    def found_by_jax(how: Program) -> Executable:
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
        return compile_it(how)

    kept("empty_state", how, found_by_jax)
    assert not kept.folder.exists()
    names = []

    def noting(how: Program) -> Executable:
        names.append(how.function.__name__)
        return compile_it(how)

    for name in ("empty_state", "another"):
        kept(name, how, noting)
        (kept.folder / f"{name}.bin").unlink()
        kept(name, how, noting)
    assert len(set(names)) == 4, "names that JAX's cache cannot know"
    assert not caplog.records


def test_a_kept_executable_is_used_again(tmp_path: Path) -> None:
    kept, how = keeper(tmp_path)
    kept("empty_state", how, compile_it)
    again, how = keeper(tmp_path)
    state = again("empty_state", how, never)()
    assert jax.tree.map(lambda leaf: leaf.shape, state) == jax.tree.map(lambda leaf: leaf.shape, how.result)
    assert not np.asarray(state.hidden).any()


@pytest.mark.parametrize("options", [{"max_num_seqs": 8}, {"block_size": 32}, {"dtype": "bfloat16"}], ids=str)
def test_another_engine_has_another_folder(tmp_path: Path, options: dict[str, Any]) -> None:
    assert keeper(tmp_path)[0].folder != keeper(tmp_path, **options)[0].folder


def test_settings_of_the_compiler_are_part_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keeper(tmp_path)[0].folder
    assert keeper(tmp_path, seed=3)[0].folder == before
    # That there is a choice of platforms changes nothing of the one that it is.
    chosen = jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", "cpu,other")
    try:
        assert keeper(tmp_path)[0].folder == before
    finally:
        jax.config.update("jax_platforms", chosen)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert keeper(tmp_path)[0].folder != before


@pytest.mark.parametrize("content", [b"", b"jaxllm executable 2\n", b"x" * 200, b"jaxllm executable 1\n" + b"x" * 90])
def test_what_is_no_executable_is_replaced(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    kept, how = keeper(tmp_path)
    kept.folder.mkdir()
    (kept.folder / "empty_state.bin").write_bytes(content)
    kept("empty_state", how, compile_it)
    assert "is rebuilt" in caplog.text
    kept("empty_state", how, never)


def test_an_executable_of_other_arrays_is_replaced(tmp_path: Path) -> None:
    small, how = keeper(tmp_path, max_num_seqs=8)
    small("empty_state", how, compile_it)
    kept, how = keeper(tmp_path)
    (small.folder / "empty_state.bin").rename(kept.folder.parent / "moved.bin")
    kept.folder.mkdir()
    (kept.folder.parent / "moved.bin").rename(kept.folder / "set_row.bin")
    set_row = generation_programs(resolve_config(EngineConfig.from_options({})), 64).programs["set_row"]
    kept("set_row", set_row, compile_it)
    kept("set_row", set_row, never)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "engines").write_text("a file")
    kept, how = keeper(tmp_path / "engines")
    kept("empty_state", how, compile_it)
    assert "for the next start" in caplog.text


def test_an_earlier_start_with_a_little_less_memory_is_taken_up(tmp_path: Path) -> None:
    """Free memory is never quite the same; another number of pages would have to be compiled."""
    resolved = resolve_config(EngineConfig.from_options({"model": "demo", "max_num_batched_tokens": 8}))

    def keep(pages: int) -> None:
        CachedExecutables.of(tmp_path, resolved, generation_programs(resolved, pages), pages).folder.mkdir()

    size = 5 << 24  # of the sizes 4, 5, 6, 7 times a power of two that numbers of pages come from
    less, exact, more = (steady_pages(resolved, size + step, None) for step in (-1, 0, 1 << 24))
    assert less < exact < more
    assert steady_pages(resolved, size, tmp_path) == exact
    keep(less)
    assert steady_pages(resolved, size, tmp_path) == less
    assert steady_pages(resolved, size + (1 << 24), tmp_path) == more
    keep(exact)
    assert steady_pages(resolved, size, tmp_path) == exact

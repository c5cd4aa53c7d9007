"""Steps that hang, do not fit or are rejected are found at the start. Each engine has a process of its own."""

import json
from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.first_run import run_at_start
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.resolve import resolve_config
from tests.conftest import RunPython

BROKEN_STEP = """
import sys
import jax, jax.numpy as jnp
from jaxllm.executor import build, step_program
from jaxllm.executor.compile import first_run
from tests.e2e.driving import make_engine

def hang(number):
    return jax.lax.while_loop(lambda x: x > -1, lambda x: jnp.abs(x + 1) % 1000, number)

def exhaust(number):
    large = jax.lax.broadcasted_iota(jnp.int32, (1 << 20, 1 << 22), 1) ^ number
    return jax.lax.sort(large, dimension=1)[number, number]

make_step, broken = step_program.make_step, {"hang": hang, "exhaust": exhaust}[sys.argv[1]]

def make_broken_step(merge, shape, bucket):
    step = make_step(merge, shape, bucket)
    if bucket.tokens != 8:
        return step
    def with_broken(parameters, adapters, state, packed):
        return step(parameters, adapters, state, packed + (broken(packed[0]) >> 31))
    return with_broken

step_program.make_step = make_broken_step
build.run_at_start = lambda platform, made: made    # as on an accelerator
first_run.LONGEST_SECONDS, first_run.is_watched = 3.0, lambda: True
# XLA's attention: without a cache, the kernels of the CPU would be compiled, which takes longer than all else.
make_engine(max_num_batched_tokens=8, max_model_len=64, max_num_seqs=4, compilation_cache_dir="",
            attention_backend="xla", enforce_eager=False)
"""

FOREIGN = """
import json, logging, sys
from pathlib import Path
import jax
from jaxllm.pallas_kernels.artifact_cache import ArtifactCache
from tests.e2e.driving import make_engine, request, run

logging.basicConfig(stream=sys.stderr)
cache = Path(sys.argv[1]) / "engines"
lowered = []
def listen(event, duration, **details):
    if event.endswith("jaxpr_to_mlir_module_duration") and "step_" in str(details.get("fun_name")):
        lowered.append(details["fun_name"])
jax.monitoring.register_event_duration_secs_listener(listen)

def start(pages):
    lowered.clear()
    before = set(cache.glob("*"))
    engine = make_engine(max_num_batched_tokens=8, max_model_len=64, max_num_seqs=4, num_gpu_blocks_override=pages,
                         compilation_cache_dir=sys.argv[1], attention_backend="xla", enforce_eager=False)
    tokens = run(engine, [request(0, [5, 6, 7], max_tokens=6)])["0"].token_ids
    engine.close()
    return {"tokens": tokens, "lowered": len(lowered)}, next(iter(set(cache.glob("*")) - before), None)

# Programs of another engine, in the place of ours: they load, and do not take our arrays.
_, other = start(64)
cold, ours = start(32)
artifacts = ArtifactCache(cache, 1 << 40)
for file in ours.glob("step_*.bin"):
    mine, others = (bytes(artifacts.get(f"{folder.name}/{file.name}")) for folder in (ours, other))
    end = [8 + int.from_bytes(each[:8], "little") for each in (mine, others)]
    artifacts.put(f"{ours.name}/{file.name}", mine[:end[0]] + others[end[1]:])
foreign, replaced = start(32)[0], start(32)[0]
print(json.dumps([cold, foreign, replaced]))
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        pytest.param(
            "hang",
            "EngineError: the first step of 8 tokens x 4 requests did not finish within 3 s",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "exhaust",
            "CapacityError: the device ran out of memory in the first step of 8 tokens x 4 requests",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_error_names_the_step_that_is_broken(run_python: RunPython, how: str, message: str) -> None:
    done = run_python("-c", BROKEN_STEP, how)
    # What hangs cannot be interrupted: the interpreter may abort when it ends.
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.slow
def test_executables_that_the_runtime_rejects_are_compiled_again(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", FOREIGN, str(tmp_path))
    assert done.returncode == 0, done.stderr
    cold, foreign, replaced = json.loads(done.stdout.splitlines()[-1])
    assert cold["tokens"] == foreign["tokens"] == replaced["tokens"]
    assert (cold["lowered"], foreign["lowered"], replaced["lowered"]) == (2, 2, 0)
    assert "cached executables are compiled again" in done.stderr


def test_accelerators_run_every_step_first() -> None:
    programs = generation_programs(resolve_config(EngineConfig.from_options({})), 64)
    made = programs.buckets.all
    assert run_at_start("tpu", made) == run_at_start("gpu", made) == made
    assert run_at_start("cpu", made) == made[:1]

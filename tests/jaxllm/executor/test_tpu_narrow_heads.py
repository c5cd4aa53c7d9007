"""Steps of Llama-3.2-1B, with heads of 64, for TPUs that are not there: no attention pads or copies the cache."""

import json
from typing import Any

import pytest

from tests.conftest import RunPython
from tests.jaxllm.planning.llama import write_model

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")

MODEL = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "intermediate_size": 8192,
    "tie_word_embeddings": True,
}
PAGES = 2048
CACHE = PAGES * 64 * 16 * 2 * 8 * 64 * 2
"""Bytes of pages of 64 tokens, in 16 layers, in bfloat16."""

COMPILE = f"""
import json
import sys

from jax.experimental import topologies

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.resolve import resolve_config


def measure(folder, topology, count, tokens, attention):
    options = {{
        "model": folder,
        "max_model_len": 8192,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": 64,
        "tensor_parallel_size": count,
        "attention_backend": attention,
    }}
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    resolved = resolve_config(EngineConfig.from_options(options), devices)
    programs = generation_programs(resolved, {PAGES})
    memory = programs.step(Bucket(tokens, 64)).compile({{}}).memory_analysis()
    return [resolved.backend("attention"), memory.alias_size_in_bytes, memory.temp_size_in_bytes]


folder, steps = sys.argv[1:]
for step in json.loads(steps):
    print(json.dumps(measure(folder, *step)))
"""


STEPS: tuple[tuple[str, int, int, str], ...] = (
    ("v6e:2x2", 1, 64, "xla"),
    ("v6e:2x2", 4, 64, "auto"),
    ("v5e:2x2", 1, 512, "auto"),
    ("v6e:2x2", 1, 64, "auto"),
)
"""Topologies, devices, tokens and the attention that is asked for. CI has such heads in `test_tpu_groups.py`, a whole
step with the kernel, and in `tests/pallas_kernels/paged_attention/tpu/test_compile.py`, with XLA's attention."""


@pytest.fixture(scope="module")
def measured(run_python: RunPython, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """By step: the attention taken, and bytes that are aliased and temporary."""
    folder = write_model(tmp_path_factory.mktemp("models") / "llama", **MODEL)
    done = run_python("-c", COMPILE, folder, json.dumps(STEPS), timeout=900)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-len(STEPS) :]]


@pytest.mark.exhaustive
@pytest.mark.parametrize("index", range(len(STEPS)), ids=[str(step) for step in STEPS])
def test_the_cache_is_neither_padded_nor_copied(measured: list[Any], index: int) -> None:
    _, count, _, asked = STEPS[index]
    chosen, aliased, temporaries = measured[index]
    assert chosen == ("tpu" if asked == "auto" else asked)
    # Besides the cache, some state of sampling is updated in place.
    assert CACHE / count <= aliased < 1.05 * CACHE / count
    assert temporaries < 0.05 * CACHE

"""Steps of Llama-3.2-1B, with heads of 64, for TPUs that are not there: no attention pads or copies the cache."""

import json
from pathlib import Path

import pytest

from tests.conftest import RunPython
from tests.jaxllm.planning.llama import write_model

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")
pytestmark = pytest.mark.slow

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
from jaxllm.runtime.programs.buckets import Bucket
from jaxllm.runtime.programs.generation import generation_programs
from jaxllm.runtime.resolved import resolve_config

folder, topology, count, tokens, attention = sys.argv[1:]
options = {{
    "model": folder,
    "max_model_len": 8192,
    "max_num_batched_tokens": int(tokens),
    "max_num_seqs": 64,
    "tensor_parallel_size": int(count),
    "attention_backend": attention,
}}
devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
resolved = resolve_config(EngineConfig.from_options(options), devices)
programs = generation_programs(resolved, {PAGES})
memory = programs.step(Bucket(int(tokens), 64)).compile({{}}).memory_analysis()
print(json.dumps([resolved.attention, memory.alias_size_in_bytes, memory.temp_size_in_bytes]))
"""


@pytest.mark.parametrize(
    ("topology", "count", "tokens", "attention", "taken"),
    [
        ("v6e:2x2", 1, 64, "auto", "tpu"),
        ("v6e:2x2", 4, 64, "auto", "tpu"),
        ("v5e:2x2", 1, 512, "auto", "tpu"),
        ("v6e:2x2", 1, 64, "xla", "xla"),
    ],
)
def test_the_cache_is_neither_padded_nor_copied(
    run_python: RunPython, tmp_path: Path, topology: str, count: int, tokens: int, attention: str, taken: str
) -> None:
    folder = write_model(tmp_path / "llama", **MODEL)
    done = run_python("-c", COMPILE, folder, topology, str(count), str(tokens), attention, timeout=500)
    assert done.returncode == 0, done.stderr
    chosen, aliased, temporaries = json.loads(done.stdout.splitlines()[-1])
    assert chosen == taken
    # Beside the cache, some state of sampling is updated in place.
    assert CACHE / count <= aliased < 1.05 * CACHE / count
    assert temporaries < 0.05 * CACHE

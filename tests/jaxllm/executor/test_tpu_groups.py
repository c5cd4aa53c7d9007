"""Steps of models whose layers have page tables of their own, for TPUs that are not there: the cache is not copied."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunPython
from tests.thinned import thinned

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")

MODELS: dict[str, dict[str, Any]] = {
    # Gemma 3 4B, two rounds of its pattern.
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
    },
    # gpt-oss-20b, with fewer layers.
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 8,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "sliding_window": 128,
    },
}
COMMON = {"vocab_size": 32768, "max_position_embeddings": 32768, "torch_dtype": "bfloat16"}

COMPILE = """
import json
import sys

import numpy as np
from jax.experimental import topologies

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.resolve import resolve_config

folder, count = sys.argv[1:]
options = {"model": folder, "max_num_batched_tokens": 512, "max_num_seqs": 64, "tensor_parallel_size": int(count)}
devices = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2").devices
resolved = resolve_config(EngineConfig.from_options(options), devices)
programs = generation_programs(resolved, 1024)
memory = programs.step(Bucket(64, 64)).compile({}).memory_analysis()
cache = programs.state.kv_cache.pages[0]
size = int(np.prod(cache.sharding.shard_shape(cache.shape) if cache.sharding else cache.shape)) * cache.dtype.itemsize
print(json.dumps([resolved.backend("attention"), size, memory.alias_size_in_bytes, memory.temp_size_in_bytes]))
"""


@pytest.mark.parametrize(("name", "count"), thinned([("gpt_oss", 4)], [("gemma3", 1)]))
def test_the_cache_is_not_copied(run_python: RunPython, tmp_path: Path, name: str, count: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**COMMON, **MODELS[name]}))
    done = run_python("-c", COMPILE, str(tmp_path), str(count), timeout=500)
    assert done.returncode == 0, done.stderr
    attention, cache, aliased, temporaries = json.loads(done.stdout.splitlines()[-1])
    assert attention == "tpu"
    # Besides the cache, some state of sampling is updated in place.
    assert cache <= aliased < 1.1 * cache
    assert temporaries < 0.25 * cache

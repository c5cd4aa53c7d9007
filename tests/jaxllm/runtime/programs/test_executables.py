from typing import Any

import numpy as np
import pytest

from jaxllm.config import EngineConfig
from jaxllm.runtime.programs.buckets import Bucket
from jaxllm.runtime.programs.generation import generation_programs
from jaxllm.runtime.resolved import resolve_config

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

"""Loads prefixes from the host, and from files after a restart, on virtual devices; prints what came back.

Run by a test: tier_on_devices.py TENSOR_PARALLEL_SIZE PIPELINE_PARALLEL_SIZE FOLDER
"""

import sys
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from tests.e2e.driving import request, run

OPTIONS: dict[str, Any] = {
    "block_size": 16, "max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 128, "layer_stack": "scan",
    "kv_offloading_size": 0.01, "kv_offloading": "always", "num_gpu_blocks_override": 10,
    "strict_compilation": True, "optimization_level": 0, "enforce_eager": True,
}  # fmt: skip
PROMPTS = [[5 + (7 * number + place * place) % 100 for place in range(80)] for number in range(4)]


def tokens_of(engine: Engine, **params: Any) -> dict[str, list[int]]:
    requests = [
        request(number, prompt, temperature=0, max_tokens=8, ignore_eos=True, **params)
        for number, prompt in enumerate(PROMPTS)
    ]
    return {name: answer.token_ids for name, answer in run(engine, requests).items()}


def main() -> None:
    tensor, pipeline, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    options = {
        **OPTIONS, "tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "kv_offloading_path": folder,
    }  # fmt: skip
    engine = Engine.from_config(EngineConfig.from_options(options))
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    for _ in range(3):
        assert tokens_of(engine) == expected
    offload = engine.stats().offload
    assert not offload.failures
    sys.stdout.write(f"{offload.hits} {len({tuple(tokens) for tokens in expected.values()})}\n")
    engine.close()
    engine = Engine.from_config(EngineConfig.from_options(options))
    assert tokens_of(engine) == expected
    sys.stdout.write(f"{engine.stats().offload.disk_hits} {engine.stats().offload.hits}\n")
    engine.close()


if __name__ == "__main__":
    main()

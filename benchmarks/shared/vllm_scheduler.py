"""The cost of a decode step in vLLM's scheduler. Runs under an interpreter that has vllm, without jaxllm.

    python vllm_scheduler.py RUNNING CONTEXT STEPS CACHING        (CACHING: 0 or 1)

The last line of its output is a JSON object. Written for vLLM 0.32; its internals change often.
"""

# mypy: disable-error-code="import-not-found"
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BLOCK_SIZE = 16
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32_000,
    "torch_dtype": "float32",
}


def make_scheduler(folder: str, running: int, max_model_len: int, caching: bool) -> Any:
    """The scheduler of vLLM with one layer of full attention and room for all requests."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    (Path(folder) / "config.json").write_text(json.dumps({**MODEL, "max_position_embeddings": max_model_len}))
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=caching)
    config = VllmConfig(
        model_config=ModelConfig(model=folder, dtype="float32", skip_tokenizer_init=True, max_model_len=max_model_len),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=running,
            max_num_batched_tokens=running * max_model_len,
            max_model_len=max_model_len,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        device_config=DeviceConfig(device="cpu"),
    )
    num_blocks = running * -(-max_model_len // BLOCK_SIZE) + running + 1
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)
    kv = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    cache.num_gpu_blocks = num_blocks
    return Scheduler(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )


def add_requests(scheduler: Any, running: int, context: int) -> None:
    """Random prompts of about `context` tokens, which never end by themselves."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    rng = np.random.default_rng(0)
    for index in range(running):
        prompt = rng.integers(3, 32_000, context + index % BLOCK_SIZE).tolist()
        scheduler.add_request(
            Request(
                request_id=str(index),
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=1_000_000, temperature=0.0),
                pooling_params=None,
                block_hasher=hasher,
            )
        )


def step(scheduler: Any, rng: np.random.Generator) -> tuple[float, float]:
    """Seconds of CPU time of this thread in `schedule` and in `update_from_output`."""
    from vllm.v1.outputs import ModelRunnerOutput

    start = time.thread_time()
    planned = scheduler.schedule()
    scheduled = time.thread_time() - start
    names = list(planned.num_scheduled_tokens)
    tokens = rng.integers(3, 32_000, len(names)).tolist()
    output = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[token] for token in tokens],
    )
    start = time.thread_time()
    scheduler.update_from_output(planned, output)
    return scheduled, time.thread_time() - start


def main() -> None:
    """Print the figures."""
    running, context, steps, caching = (int(argument) for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        scheduler = make_scheduler(folder, running, context + BLOCK_SIZE + steps + 2, bool(caching))
    add_requests(scheduler, running, context)
    rng = np.random.default_rng(1)
    step(scheduler, rng)
    assert len(scheduler.running) == running
    times = np.array([step(scheduler, rng) for _ in range(steps)]) * 1e3
    schedule, update = np.median(times, axis=0)
    total = times.sum(axis=1)
    figures = {
        "schedule_ms": float(schedule),
        "update_ms": float(update),
        "total_ms": float(np.median(total)),
        "p99_ms": float(np.percentile(total, 99)),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

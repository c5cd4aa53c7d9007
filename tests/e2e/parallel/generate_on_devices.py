"""Generates on several numbers of virtual devices and prints a line of JSON for each: run by a test.

generate_on_devices.py DEVICES [DEVICES ...]
"""

import json
import sys
from typing import Any

import jax

from jaxllm import LLM, SamplingParams, StructuredOutputsParams
from jaxllm.serving.text.outputs import RequestOutput, TokenChoices

PROMPTS = [
    "Once upon a time there was a",
    "Mira is the name of",
    "12 + 7 = 19\n8 + 5 =",
    "The colours: red, green, blue,",
    '{"name": "Mira", "age":',
    "A story about a dog and a cat who",
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, logprobs=3, prompt_logprobs=2),
    SamplingParams(seed=5, max_tokens=24, top_p=0.9),
    SamplingParams(seed=6, max_tokens=24, temperature=1.5, top_k=40, min_p=0.01, ignore_eos=True),
    SamplingParams(
        seed=7, max_tokens=24, presence_penalty=0.5, repetition_penalty=1.2, logit_bias={5: 2.0}, min_tokens=9
    ),
    SamplingParams(
        seed=8,
        max_tokens=24,
        structured_outputs=StructuredOutputsParams(regex=r"[A-Z][a-z]{2,8} is \d+(, and \w+)*\."),
    ),
]

LISTED = SamplingParams(temperature=0, max_tokens=8, logprob_token_ids=[0, 5, 511, 512, 700, 1000])


def tokens(llm: LLM) -> list[list[list[int]]]:
    """The tokens of every prompt with all parameters."""
    found = [llm.generate(PROMPTS, params, use_tqdm=False) for params in PARAMS]
    return [[list(output.outputs[0].token_ids) for output in outputs] for outputs in found]


def logprobs(llm: LLM) -> list[list[float]]:
    """Greedy tokens' log-probabilities, those of the prompt, and those of listed tokens."""
    found = []
    for output in llm.generate(PROMPTS, PARAMS[0], use_tqdm=False):
        places = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
        found.append([logprob.logprob for place in places if place for logprob in place.values()])
    listed = llm.generate(PROMPTS, LISTED, use_tqdm=False)
    return found + [[each.logprob for place in _places(output) for each in place.values()] for output in listed]


def _places(output: RequestOutput) -> list[TokenChoices]:
    return output.outputs[0].logprobs or []


def run(devices: int) -> dict[str, Any]:
    """All scenarios, and how much of each array the first device holds."""
    options: dict[str, Any] = {
        "tensor_parallel_size": devices,
        "optimization_level": 0,
        "strict_compilation": True,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "max_model_len": 96,
        "block_size": 4,
    }
    # 31 pages of 4 tokens for six requests of eight or more: some are preempted. The second time prompts are cached.
    with LLM(num_gpu_blocks_override=32, **options) as llm:
        engine: Any = llm.llm_engine.engine
        result: dict[str, Any] = {"devices": devices, "preempted": tokens(llm), "cached": tokens(llm)}
        engine._depth = 1  # as with async_scheduling=False
        result["synchronous"] = tokens(llm)
        engine._depth = 2
        stats = engine.stats()
        result |= {"preemptions": stats.num_preemptions, "prefix_hits": stats.prefix_hits}
        result["logprobs"] = logprobs(llm)
        runner = engine.runner
        arrays = (*runner._parameters, runner._state.kv_cache, runner._state.sampling.bias)
        result["shares"] = [shard_share(array) for array in arrays if array.ndim > 1]
        result["compilations"] = runner.watch.count
    return result


def shard_share(array: jax.Array) -> float:
    """Largest part of the array that one device holds."""
    return max(shard.data.size for shard in array.addressable_shards) / array.size


def main() -> None:
    """Run on each number of devices."""
    for devices in sys.argv[1:]:
        print(json.dumps(run(int(devices))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

"""Generates on several numbers of virtual devices and prints a line of JSON for each: run by a test.

DEVICES is a number, or a mesh, such as data=2,model=2, or stages=2,model=2 for pipeline parallel.

generate_on_devices.py DEVICES [DEVICES ...]
generate_on_devices.py --few DEVICES                        fewer scenarios
generate_on_devices.py --kv TYPE DEVICES [DEVICES ...]      with a KV cache of this type
generate_on_devices.py --process RANK SIZE PORT DEVICES     as one of several processes that have the devices together
"""

import json
import sys
from typing import Any

import jax

from jaxllm import LLM, BeamSearchParams, SamplingParams, StructuredOutputsParams
from jaxllm.config import EngineConfig
from jaxllm.load import follow_engine
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

LARGEST_NORMS = 4 * 128
"""Numbers in the norms of all layers of `demo`."""

LISTED = SamplingParams(temperature=0, max_tokens=8, logprob_token_ids=[0, 5, 511, 512, 700, 1000])


def tokens(llm: LLM, params: list[SamplingParams]) -> list[list[list[int]]]:
    """The tokens of every prompt with all parameters."""
    found = [llm.generate(PROMPTS, each, use_tqdm=False) for each in params]
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


def beams(llm: LLM) -> list[list[list[int]]]:
    """The tokens of all beams."""
    found = llm.beam_search(PROMPTS[:2], BeamSearchParams(beam_width=3, max_tokens=8))
    return [[list(sequence.tokens) for sequence in output.sequences] for output in found]


def options_for(devices: str) -> dict[str, Any]:
    """Of a small engine on so many devices.

    It has 31 pages of 4 tokens for six requests of eight or more: some are preempted. The second time prompts are
    cached. A data shard has its own pages for about three of them, so it gets as few as one request may need.
    """
    return {
        "num_gpu_blocks_override": 26 if "data=" in devices else 32,
        **_parallel(devices),
        "optimization_level": 0,
        # The layers of `demo` are alike: as a scan they compile in half the time.
        "layer_stack": "scan",
        "strict_compilation": True,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 8,
        "max_model_len": 96,
        "block_size": 4,
    }


def _parallel(devices: str) -> dict[str, Any]:
    if devices.startswith("stages="):
        stages, _, others = devices.removeprefix("stages=").partition(",")
        return {"pipeline_parallel_size": int(stages)} | _parallel(others or "1")
    return {"mesh": devices} if "=" in devices else {"tensor_parallel_size": int(devices)}


def run(devices: str, *, few: bool = False, **more: Any) -> dict[str, Any]:
    """All scenarios, or a few, and how much of each array the first device holds."""
    params = PARAMS[::2] if few else PARAMS
    with LLM(**options_for(devices), **more) as llm:
        engine: Any = llm.llm_engine.engine
        result: dict[str, Any] = {"devices": devices, "preempted": tokens(llm, params)}
        if not few:
            result["cached"] = tokens(llm, PARAMS[1::2])
        depth, engine._depth = engine._depth, 1  # as with async_scheduling=False
        result["synchronous"] = tokens(llm, PARAMS[::2])
        engine._depth = depth
        stats = engine.stats()
        result |= {"preemptions": stats.num_preemptions, "prefix_hits": stats.prefix_hits}
        result["logprobs"] = logprobs(llm)
        result["beams"] = beams(llm)
        runner = engine.runner
        # Of matrices: those of all layers lie in one array, and so do their norms, which every device has.
        result["shares"] = [shard_share(array) for array in runner.parameters if array.size > LARGEST_NORMS]
        state = runner.calls.state
        result["kept_shares"] = [shard_share(array) for array in (*state.kv_cache.pages, state.sampling.bias)]
        result["compilations"] = runner.watch.count
    return result


def shard_share(array: jax.Array) -> float:
    """Largest part of the array that one device holds."""
    return max(shard.data.size for shard in array.addressable_shards) / array.size


def run_process(rank: int, size: int, port: int, devices: str) -> None:
    """Run as one of several processes."""
    more = {"nnodes": size, "node_rank": rank, "master_port": port, "distributed_timeout_seconds": 200}
    if rank:
        follow_engine(EngineConfig.from_options(options_for(devices) | more))
    else:
        print(json.dumps(run(devices, few=True, **more)), flush=True)  # noqa: T201


def main() -> None:
    """Run on each number of devices."""
    if sys.argv[1] == "--process":
        rank, size, port, devices = sys.argv[2:]
        run_process(int(rank), int(size), int(port), devices)
        return
    more = {}
    if sys.argv[1] == "--kv":
        more["kv_cache_dtype"] = sys.argv.pop(2)
        del sys.argv[1]
    few = sys.argv[1] == "--few"
    for devices in sys.argv[1 + few :]:
        print(json.dumps(run(devices, few=few, **more)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

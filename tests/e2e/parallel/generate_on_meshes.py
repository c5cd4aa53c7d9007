"""Generates with a small model on several meshes of virtual devices and prints a line of JSON for each: run by a test.

generate_on_meshes.py FOLDER PARALLEL [PARALLEL ...], where PARALLEL is a mesh, followed by ,ep for expert parallelism,
and by ,kv=TYPE for another type of the KV cache.
"""

import json
import sys
from typing import Any

import numpy as np

from jaxllm.engine.engine import Engine
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.request import Request
from tests.e2e.driving import make_engine, request
from tests.e2e.driving import run as run_all


def requests() -> list[Request]:
    """Prompts that begin alike, greedy and not."""
    random = np.random.default_rng(0)
    begin = random.integers(0, 90, 9).tolist()
    made = []
    for index in range(12):
        prompt = [*(begin if index % 2 else []), *random.integers(0, 90, 2 + 3 * index % 17).tolist()]
        params: dict[str, Any] = {"temperature": 0.0} if index % 3 else {"temperature": 1.0, "top_p": 0.9}
        made.append(request(index, prompt, max_tokens=14, ignore_eos=True, logprobs=2, **params))
    return made


def tokens(engine: Engine) -> list[list[int]]:
    """Those of all requests, in order."""
    found = run_all(engine, requests())
    return [found[str(index)].token_ids for index in range(len(found))]


def beams(engine: Engine) -> list[list[int]]:
    """The best sequences of a search alongside which others run."""
    engine.add_request(request("a", [5, 6, 7], temperature=0, max_tokens=8, beam_search=BeamOptions(width=3)))
    engine.add_request(request("b", [8, 9], temperature=0, max_tokens=8))
    found: list[list[int]] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            found += [list(each.token_ids) for each in output.sequences or []]
    return found


def run(folder: str, parallel: str) -> dict[str, Any]:
    """All scenarios."""
    parallel, _, cache = parallel.partition(",kv=")
    mesh = parallel.removesuffix(",ep")
    options: dict[str, Any] = {"enable_expert_parallel": mesh != parallel, "mesh": mesh, "model": folder}
    options |= {"kv_cache_dtype": cache} if cache else {}
    steps = {"max_num_seqs": 6, "max_num_batched_tokens": 8, "max_model_len": 48, "block_size": 4}
    engine = make_engine(**options, **steps, max_logprobs=6, num_gpu_blocks_override=17, enforce_eager=False)
    found: dict[str, Any] = {"parallel": parallel, "preempted": tokens(engine), "cached": tokens(engine)}
    found |= {"preemptions": engine.stats().num_preemptions, "prefix_hits": engine.stats().prefix_hits}
    found["beams"] = beams(engine)
    found["compilations"] = engine.runner.watch.count
    engine.close()
    return found


def main() -> None:
    """Run with each mesh."""
    folder, *all_parallel = sys.argv[1:]
    for parallel in all_parallel:
        print(json.dumps(run(folder, parallel)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

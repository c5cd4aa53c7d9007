"""The demo model with its EAGLE-3 head against without, on this machine: the same requests, alternating; medians.

The requests are held-out ones of the demo model, answered greedily. Tokens are compared in every run. As in a server,
each of the `--requests` places takes the next request when its own is answered.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.speculation import Run
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.speculation.statistics import DraftCounts
from scripts.demo_model import held_out
from scripts.demo_model.evaluate import prompt_text

ENDS = (2, 0)


def prompts(kinds: Sequence[str], count: int) -> list[np.ndarray]:
    """At most `count` of 200 held-out requests, those of some kinds as tokens, int32 [n] each."""
    tokenizer = Tokenizer.from_file(str(find_model("demo") / "tokenizer.json"))
    items = [item for item in held_out.prompts(2) if not kinds or item.kind in kinds][:count]
    encoded = tokenizer.encode_batch([prompt_text(item) for item in items], add_special_tokens=False)
    return [np.array(each.ids, np.int32) for each in encoded]


def run(engine: Engine, asked: Sequence[np.ndarray], places: int, output_tokens: int) -> Run:
    """Answer the requests, `places` at a time."""
    params = SamplingParams(temperature=0, max_tokens=output_tokens, stop_token_ids=list(ENDS))
    found: dict[str, list[int]] = {}
    waiting, running = list(enumerate(asked)), 0
    began, processor, steps = time.perf_counter(), time.process_time(), 0
    while waiting or running:
        while waiting and running < places:
            number, prompt = waiting.pop(0)
            engine.add_request(Request(request_id=str(number), prompt_token_ids=prompt, params=params))
            running += 1
        outputs = engine.step()
        steps += bool(outputs)
        for output in outputs:
            found.setdefault(output.request_id, []).extend(output.token_ids)
            running -= output.finish_reason is not None
    return Run(time.perf_counter() - began, time.process_time() - processor, steps, found)


def compare(asked: Sequence[np.ndarray], places: int, output_tokens: int, tokens: int, runs: int) -> dict[str, Any]:
    """The figures of `runs` runs of each engine, after one that does not count."""
    options: dict[str, Any] = {
        "model": "demo",
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
    }
    head = {"method": "eagle3", "model": "demo-eagle3", "num_speculative_tokens": tokens}
    engines = [
        Engine.from_config(EngineConfig.from_options({**options, "speculative_config": c})) for c in (None, head)
    ]
    pairs: list[tuple[Run, Run]] = []
    before = DraftCounts()
    for index in range(runs + 1):
        found = {
            place: run(engines[place], asked, places, output_tokens) for place in ((0, 1) if index % 2 else (1, 0))
        }
        assert found[0].tokens == found[1].tokens, "drafts have changed tokens"
        if index:
            pairs.append((found[0], found[1]))
        else:
            before = engines[1].stats().drafts
    drafts = engines[1].stats().drafts.since(before)
    for engine in engines:
        engine.close()
    num_tokens = sum(map(len, pairs[0][0].tokens.values()))
    return {
        "requests": places,
        "tokens_per_s_without": round(num_tokens / statistics.median(each.seconds for each, _ in pairs), 1),
        "tokens_per_s_with": round(num_tokens / statistics.median(each.seconds for _, each in pairs), 1),
        "ratio": round(statistics.median(a.seconds / b.seconds for a, b in pairs), 3),
        "processor_ratio": round(statistics.median(a.processor_seconds / b.processor_seconds for a, b in pairs), 3),
        "steps_without": statistics.median(each.steps for each, _ in pairs),
        "steps_with": statistics.median(each.steps for _, each in pairs),
        "accepted": round(drafts.num_accepted_tokens / max(1, drafts.num_draft_tokens), 3),
        "drafts_per_step": round(drafts.num_draft_tokens / max(1, drafts.num_drafts), 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with each number of requests at a time and print a line of JSON for each."""
    parser = argparse.ArgumentParser(prog="scripts/bench demo_head", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8], help="at a time")
    parser.add_argument("--kinds", nargs="*", default=["stories", "json", "calls", "lists"], help="of what; none: all")
    parser.add_argument("--count", type=int, default=40, help="requests in a run")
    parser.add_argument("--tokens", type=int, default=4, help="most drafts of a request in a step")
    parser.add_argument("--output-tokens", type=int, default=200, help="most tokens of each request")
    parser.add_argument("--runs", type=int, default=5, help="runs of each engine that count")
    asked = parser.parse_args(arguments)
    given = prompts(asked.kinds, asked.count)
    for places in asked.requests:
        print(json.dumps(compare(given, places, asked.output_tokens, asked.tokens, asked.runs)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

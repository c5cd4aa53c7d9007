"""Structured outputs on the demo model: throughput compared with free text, time to compile a schema, time of a
mask.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm import LLM, SamplingParams
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import Backend, Vocabulary, make_backend, mask_words

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "animal": {"type": "string"},
        "likes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "animal", "likes"],
    "additionalProperties": False,
}
QUESTION = "Give me a JSON object for Mira with name, animal and likes."


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5, help="The kinds take turns so often; medians are shown.")
    options = parser.parse_args()
    report: dict[str, Any] = {"requests": options.requests, **throughput(options.requests, options.rounds)}
    backend = demo_backend()
    report |= {**compile_time(backend), **mask_time(backend, options.requests)}
    print(json.dumps(report, indent=2))


def throughput(count: int, rounds: int) -> dict[str, float]:
    """Output tokens per second of `count` requests at once, free and constrained, with and without forced tokens.

    JSON ends when it is complete, so it is compared with free outputs of the same lengths: towards the end of either
    there are fewer requests in a step.
    """
    long = {"regex": r"[a-z]{1,9}( [a-z]{1,9}){200}"}
    kinds: dict[str, dict[str, Any]] = {
        "free": {"ignore_eos": True, "max_tokens": 64},
        "regex": {"structured_outputs": long, "max_tokens": 64},
        "json": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 64},
        "free_as_json": {"ignore_eos": True},
    }
    lengths = [64] * count
    measured: dict[str, list[float]] = {name: [] for name in kinds}
    with LLM("demo", max_model_len=512, max_num_seqs=max(count, 8)) as llm:
        prompts = [llm.render_chat([{"role": "user", "content": QUESTION}])] * count
        for turn in range(rounds + 1):
            for name, fields in kinds.items():
                params = [SamplingParams(temperature=0.8, seed=seed, **fields) for seed in range(count)]
                if name == "free_as_json":
                    for each, length in zip(params, lengths, strict=True):
                        each.max_tokens = length
                began = time.perf_counter()
                results = llm.generate(prompts, params, use_tqdm=False)
                seconds = time.perf_counter() - began
                if name == "json":
                    lengths = [len(result.outputs[0].token_ids) for result in results]
                if turn:
                    measured[name].append(_tokens(results) / seconds)
    medians = {name: float(np.median(values)) for name, values in measured.items()}
    figures = {f"{name}_tokens_per_second": round(value) for name, value in medians.items()}
    pairs = (("regex", "free"), ("json", "free_as_json"))
    return figures | {f"{name}_of_free": round(medians[name] / medians[free], 3) for name, free in pairs}


def _tokens(results: Sequence[Any]) -> int:
    return sum(len(result.outputs[0].token_ids) for result in results)


def demo_backend() -> Backend:
    """The compiler that an engine on `demo` uses."""
    return make_backend("llguidance", Vocabulary(Path(find_model("demo", None, None)), 1536, (0,)))


def large_schema(size: int) -> dict[str, Any]:
    """A schema of about `size` bytes: objects of many properties of all kinds."""
    properties: dict[str, Any] = {}
    while len(json.dumps(properties)) < size:
        number = len(properties)
        properties[f"part {number}"] = {
            "type": "object",
            "properties": {
                "text": {"type": "string", "maxLength": 10 + number},
                "kind": {"enum": [f"kind {number} {place}" for place in range(5)]},
                "values": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": number + 1}},
                "code": {"type": "string", "pattern": f"^[A-Z]{{2,{3 + number}}}-[0-9]+$"},
            },
            "required": ["text", "kind"],
            "additionalProperties": False,
        }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def compile_time(backend: Backend) -> dict[str, float]:
    """Milliseconds from a schema of 10 kB to its first mask, and how large it is."""
    schema = large_schema(10_000)
    seconds = []
    for turn in range(5):
        form = StructuredOutputsParams(json={**schema, "title": str(turn)})
        began = time.perf_counter()
        backend.compile(form).matcher()
        seconds.append(time.perf_counter() - began)
    return {"schema_bytes": len(json.dumps(schema)), "compile_ms": round(1e3 * float(np.median(seconds)), 1)}


def mask_time(backend: Backend, count: int) -> dict[str, float]:
    """Microseconds per row for masks and for taking tokens, while `count` outputs follow the small schema."""
    matchers = [backend.compile(StructuredOutputsParams(json=SCHEMA)).matcher() for _ in range(count)]
    masks = np.zeros((count, mask_words(1536)), np.int32)
    random = np.random.default_rng(0)
    filling, taking, rows = 0.0, 0.0, 0
    for _ in range(40):
        began = time.perf_counter()
        backend.fill([(matcher, row) for row, matcher in enumerate(matchers)], masks)
        filled = time.perf_counter()
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, 1:]
        chosen = [1 + int(random.choice(np.flatnonzero(row))) if row.any() else 0 for row in bits]
        ready = time.perf_counter()
        for matcher, token in zip(matchers, chosen, strict=True):
            matcher.take([token])
            matcher.forced()
        taking += time.perf_counter() - ready
        filling += filled - began
        rows += count
        matchers = [
            backend.compile(StructuredOutputsParams(json=SCHEMA)).matcher() if matcher.finished else matcher
            for matcher in matchers
        ]
    return {"mask_us_per_row": round(1e6 * filling / rows, 1), "take_us_per_row": round(1e6 * taking / rows, 1)}


if __name__ == "__main__":
    main()

"""Speculative decoding against none on this machine: the same loads, alternating; medians and ratios.

The model has 125 million parameters and the cost of any such model, but its next token follows from the last one
alone: attention and MLPs add zeros, and the output layer is made of the embeddings. So it is known how much of a text
repeats. `copy` gives back the prompt, and `edit` does so with every twentieth token replaced by one that was not there.
`wander` leaves what it repeats every eighth token, for a text that was not there before, and does not come back: there
is next to nothing to guess. `random` draws tokens that nobody can guess. With `--hybrid`, three of four layers have a
gated delta net in place of attention. With `--draft-layers`, a model like it with fewer layers makes the guesses on the
device.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.shared.hybrid_layers import CONFIG, hybrid_layer
from benchmarks.shared.reference_model import (
    FEED_FORWARD,
    HEAD_SIZE,
    HIDDEN,
    KV_HEADS,
    QUERY_HEADS,
    write_reference_model,
)
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

VOCAB_SIZE, LAYERS, CYCLE = 32000, 12, 200
PROMPT = CYCLE + 40
"""A prompt is a text and its first tokens again."""

REPLACED = VOCAB_SIZE // 2
"""A token and the one so much greater stand for each other: either is followed by the next of the text."""

SHARPNESS = 12.0
"""Logit of the next token of the cycle; others have about 0, give or take one."""

EDITING = 0.5
"""The temperature at which one token of `EDITED` is replaced."""

EDITED = 20


@dataclass(frozen=True)
class Load:
    """Requests that all arrive at once."""

    name: str
    requests: int
    temperature: float

    def __str__(self) -> str:
        return f"{self.name}, {self.requests} at a time"


LOADS = tuple(
    Load(name, count, temperature)
    for name, temperature in (("copy", 0.0), ("edit", EDITING), ("wander", 0.95), ("random", 8.0))
    for count in (1, 8, 64)
)


def write_chain_model(folder: Path, *, layers: int = LAYERS, hybrid: bool = False) -> Path:
    """Write a model whose most likely next token is that of a cycle of `CYCLE` tokens, for every token of a cycle."""
    write_reference_model(folder, layers=layers, vocab_size=VOCAB_SIZE, **(CONFIG if hybrid else {}))
    rng = np.random.default_rng(0)

    def weight(*shape: int, scale: float = 0.02) -> np.ndarray:
        return (scale * rng.standard_normal(shape, np.float32)).astype(ml_dtypes.bfloat16)

    embedding = rng.standard_normal((VOCAB_SIZE, HIDDEN), np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    numbers = np.arange(REPLACED)
    following = numbers - numbers % CYCLE + (numbers + 1) % CYCLE
    before = embedding[:REPLACED] + embedding[REPLACED:]
    output = np.zeros_like(embedding)
    output[following] = before * SHARPNESS / np.sqrt(HIDDEN)
    output[REPLACED + following] = before * (SHARPNESS - EDITING * np.log(EDITED - 1)) / np.sqrt(HIDDEN)
    ones = np.ones(HIDDEN, ml_dtypes.bfloat16)
    tensors: dict[str, Any] = {
        "model.embed_tokens.weight": embedding.astype(ml_dtypes.bfloat16),
        "lm_head.weight": output.astype(ml_dtypes.bfloat16),
        "model.norm.weight": weight(HIDDEN, scale=0) if hybrid else ones,
    }
    for layer in range(layers):
        if hybrid:
            tensors |= hybrid_layer(layer, weight)
            continue
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", QUERY_HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = weight(rows * HEAD_SIZE, HIDDEN)
        tensors[f"{prefix}.self_attn.o_proj.weight"] = weight(HIDDEN, QUERY_HEADS * HEAD_SIZE, scale=0)
        for name in ("gate", "up"):
            tensors[f"{prefix}.mlp.{name}_proj.weight"] = weight(FEED_FORWARD, HIDDEN)
        tensors[f"{prefix}.mlp.down_proj.weight"] = weight(HIDDEN, FEED_FORWARD, scale=0)
        tensors[f"{prefix}.input_layernorm.weight"] = ones
        tensors[f"{prefix}.post_attention_layernorm.weight"] = ones
    save_file(tensors, folder / "model.safetensors")
    return folder


@dataclass(frozen=True)
class Run:
    """What a run took, and the tokens of each request."""

    seconds: float
    processor_seconds: float
    steps: int
    tokens: dict[str, list[int]]


def run(engine: Engine, load: Load, output_tokens: int, seed: int) -> Run:
    """Answer the requests of a load."""
    rng = np.random.default_rng(seed)
    for index in range(load.requests):
        first = int(rng.integers(0, REPLACED // CYCLE)) * CYCLE
        prompt = first + np.arange(PROMPT, dtype=np.int32) % CYCLE
        params = SamplingParams(
            temperature=load.temperature, seed=seed + index, max_tokens=output_tokens, ignore_eos=True
        )
        engine.add_request(Request(request_id=f"{seed}-{index}", prompt_token_ids=prompt, params=params))
    found: dict[str, list[int]] = {}
    began, processor, steps = time.perf_counter(), time.process_time(), 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        steps += bool(outputs)
        for output in outputs:
            found.setdefault(output.request_id, []).extend(output.token_ids)
    return Run(time.perf_counter() - began, time.process_time() - processor, steps, found)


def compare(
    loads: Sequence[Load],
    *,
    dtype: str,
    tokens: int,
    output_tokens: int,
    runs: int,
    hybrid: bool = False,
    draft_layers: int = 0,
) -> Iterator[dict[str, Any]]:
    """A row for each load."""
    with tempfile.TemporaryDirectory(prefix="jaxllm-speculation-") as folder:
        options: dict[str, Any] = {
            "model": str(write_chain_model(Path(folder) / "model", hybrid=hybrid)),
            "dtype": dtype,
            "max_model_len": 1024,
            "max_num_seqs": 64,
            "kv_cache_memory_bytes": 1 << 30,
            "enable_prefix_caching": False,
        }
        drafting: dict[str, Any] = {"spec_method": "ngram"}
        if draft_layers:
            drafting = {"speculative_model": str(write_chain_model(Path(folder) / "draft", layers=draft_layers))}
        engines = [
            Engine.from_config(EngineConfig.from_options(options)),
            Engine.from_config(EngineConfig.from_options({**options, **drafting, "num_speculative_tokens": tokens})),
        ]
        for load in loads:
            yield _compare_one(engines, load, output_tokens, runs)
        for engine in engines:
            engine.close()


def _compare_one(engines: Sequence[Engine], load: Load, output_tokens: int, runs: int) -> dict[str, Any]:
    """`runs` of a load with each engine, and one before them that does not count."""
    plain: list[Run] = []
    drafting: list[Run] = []
    before = engines[1].stats().drafts
    for index in range(runs + 1):
        order = (0, 1) if index % 2 else (1, 0)
        found = {place: run(engines[place], load, output_tokens, 1000 * index) for place in order}
        assert found[0].tokens == found[1].tokens, "drafts have changed tokens"
        if index:
            plain.append(found[0])
            drafting.append(found[1])
    drafts = engines[1].stats().drafts.since(before)
    pairs = list(zip(plain, drafting, strict=True))
    num_tokens = load.requests * output_tokens
    return {
        "load": str(load),
        "tokens_per_s_without": round(num_tokens / statistics.median(each.seconds for each in plain), 1),
        "tokens_per_s_with": round(num_tokens / statistics.median(each.seconds for each in drafting), 1),
        "ratio": round(statistics.median(a.seconds / b.seconds for a, b in pairs), 3),
        "processor_ratio": round(statistics.median(a.processor_seconds / b.processor_seconds for a, b in pairs), 3),
        "steps_without": statistics.median(each.steps for each in plain),
        "steps_with": statistics.median(each.steps for each in drafting),
        "accepted": round(drafts.num_accepted_tokens / max(1, drafts.num_draft_tokens), 3),
        "drafts_per_step": round(drafts.num_draft_tokens / max(1, drafts.num_drafts), 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the loads and print a line of JSON for each."""
    parser = argparse.ArgumentParser(prog="scripts/bench speculation", description=__doc__.splitlines()[0])
    parser.add_argument("--load", nargs="+", choices=sorted({load.name for load in LOADS}), help="default: all")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64], help="at a time")
    parser.add_argument("--hybrid", action="store_true", help="a model with recurrent layers, in float32")
    parser.add_argument(
        "--draft-layers", type=int, default=0, help="let a draft model of so many layers guess, in place of n-grams"
    )
    parser.add_argument("--dtype", default="bfloat16", help="type of the model")
    parser.add_argument("--tokens", type=int, default=7, help="most drafts of a request in a step")
    parser.add_argument("--output-tokens", type=int, default=200, help="tokens of each request")
    parser.add_argument("--runs", type=int, default=5, help="runs of each engine that count")
    asked = parser.parse_args(arguments)
    loads = [load for load in LOADS if (not asked.load or load.name in asked.load) and load.requests in asked.requests]
    for row in compare(
        loads,
        dtype="float32" if asked.hybrid else asked.dtype,
        tokens=asked.tokens,
        output_tokens=asked.output_tokens,
        runs=asked.runs,
        hybrid=asked.hybrid,
        draft_layers=asked.draft_layers,
    ):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

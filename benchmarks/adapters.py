"""What LoRA adapters cost on CPUs: decodes without slots, with unused ones, and with adapters, alternating in one run.

    scripts/bench adapters [--rows 32] [--adapters 8] [--rank 16] [--model 125m] [--dtype bfloat16]

Two engines run the reference model with random weights: one without slots for adapters, one with as many as there are
adapters. Each variant decodes a batch for some steps, then comes the next one. Of each: the least and the median time
of a step, and its tokens/s compared with those of the engine without slots. The least times of two variants are
comparable on a machine with other work, and medians of alternating pairs are.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.shared.reference_model import BILLION, write_reference_model
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

MODELS: dict[str, dict[str, int]] = {"125m": {}, "1b": BILLION}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
PROMPT = 16
"""Tokens of a prompt."""
MAX_LENGTH = 512
"""Tokens of a request."""
WARM_UP = 3
"""Steps of a batch that do not count."""


@dataclass(frozen=True)
class Variant:
    """An engine, and the adapters of the rows of its batch in turn."""

    name: str
    engine: Engine
    adapters: tuple[LoRARequest, ...] = ()


def write_adapters(folder: Path, model: Path, count: int, rank: int, modules: tuple[str, ...]) -> list[LoRARequest]:
    """So many random adapters for these modules of every layer of a reference model, as PEFT writes them."""
    config = json.loads((model / "config.json").read_text())
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    outputs = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": hidden, "down_proj": hidden}
    inputs = {"o_proj": queries, "down_proj": wide}
    found = []
    for index in range(count):
        random, tensors = np.random.default_rng(index), {}
        for layer in range(config["num_hidden_layers"]):
            for module in modules:
                block = "self_attn" if module in ATTENTION else "mlp"
                name = f"base_model.model.model.layers.{layer}.{block}.{module}"
                shapes = {"A": (rank, inputs.get(module, hidden)), "B": (outputs.get(module, wide), rank)}
                for half, shape in shapes.items():
                    tensors[f"{name}.lora_{half}.weight"] = random.standard_normal(shape, np.float32) * np.float32(0.02)
        own = folder / f"{len(modules)}-{index}"
        own.mkdir(parents=True)
        save_file(tensors, own / "adapter_model.safetensors")
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(modules)}
        (own / "adapter_config.json").write_text(json.dumps(settings))
        found.append(LoRARequest(own.name, index + 1, str(own)))
    return found


def decode(variant: Variant, rows: int, steps: int) -> list[float]:
    """Seconds of each of so many steps that decode `rows` requests."""
    engine, random = variant.engine, np.random.default_rng(0)
    # None ends before all have begun, however long adapters take to come.
    params = SamplingParams(temperature=0, max_tokens=MAX_LENGTH - PROMPT, ignore_eos=True)
    for index in range(rows):
        prompt = random.integers(3, engine.info.vocab_size, PROMPT).astype(np.int32)
        request = Request(request_id=str(index), prompt_token_ids=prompt, params=params)
        if variant.adapters:
            request.lora_request = variant.adapters[index % len(variant.adapters)]
        engine.add_request(request)
    while len(engine.step()) != rows:
        pass  # Adapters come to their slots, and prompts are read.
    for _ in range(WARM_UP):
        engine.step()
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    engine.abort_request(str(index) for index in range(rows))
    while engine.has_unfinished_requests():
        engine.step()
    return times


@contextmanager
def variants(options: argparse.Namespace) -> Iterator[list[Variant]]:
    """The first is without slots."""
    with tempfile.TemporaryDirectory() as scratch:
        model = write_reference_model(Path(scratch) / "model", **MODELS[options.model])
        fixed = {"model": str(model), "load_format": "dummy", "dtype": options.dtype, "enable_prefix_caching": False}
        sizes = {
            "max_model_len": MAX_LENGTH,
            "max_num_seqs": options.rows,
            "num_gpu_blocks_override": 64 * options.rows,
        }
        lora = {"enable_lora": True, "max_loras": options.adapters, "max_lora_rank": options.rank}
        engines = [Engine.from_config(EngineConfig.from_options({**fixed, **sizes, **own})) for own in ({}, lora)]
        without, slots = engines
        adapters = Path(scratch) / "adapters"
        try:
            found = [Variant("without slots", without), Variant("slots, unused", slots)]
            for name, modules in (("attention", ATTENTION), ("all linears", ATTENTION + MLP)):
                own = write_adapters(adapters, model, options.adapters, options.rank, modules)
                found.append(Variant(f"{options.adapters} adapters, {name}", slots, tuple(own)))
            found.insert(2, Variant("1 adapter, all linears", slots, found[-1].adapters[:1]))
            yield found
        finally:
            for engine in engines:
                engine.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="125m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, default=32, help="requests that decode")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20, help="decodes of a variant before the next one's turn")
    parser.add_argument("--repeat", type=int, default=12, help="turns")
    options = parser.parse_args(arguments)
    with variants(options) as every:
        times: dict[str, list[list[float]]] = {each.name: [] for each in every}
        for each in every:
            decode(each, options.rows, 1)  # reads adapters
        for turn in range(options.repeat):
            for each in every if turn % 2 else every[::-1]:  # whoever comes first finds other caches
                times[each.name].append(decode(each, options.rows, options.steps))
    first = times[every[0].name]
    print(f"{'':28} {'least ms':>9} {'median ms':>10} {'tokens/s by least':>18} {'by alternating runs':>19}")
    for name, turns in times.items():
        least, median = min(map(min, turns)), statistics.median(map(statistics.median, turns))
        by_least = min(map(min, first)) / least
        ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(first, turns, strict=True)]
        by_turn = statistics.median(ratios)
        print(f"{name:28} {least * 1e3:9.2f} {median * 1e3:10.2f} {by_least:18.3f} {by_turn:19.3f}")


if __name__ == "__main__":
    main()

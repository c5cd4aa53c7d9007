"""How much sooner a prompt is answered whose pages come from host memory than one that is computed.

    scripts/bench host_tier [--tokens 8192] [--repeats 3] [--option NAME=VALUE ...]

A model of 125 M parameters with random weights, and so few pages that one prompt takes the place of another. Each
prompt is sent twice: it is computed, and then it comes from the host. Prints seconds to the first token, and the
measurement by which the engine decides whether a host tier pays.
"""

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.reference_model import write_reference_model
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

PAGE = 16


def make_engine(model: Path, tokens: int, options: dict[str, Any]) -> Engine:
    """An engine with pages for one prompt and a little more."""
    pages = -(-tokens // PAGE)
    fixed: dict[str, Any] = {
        "model": str(model), "load_format": "dummy", "max_model_len": tokens + 64, "max_num_seqs": 2,
        "block_size": PAGE, "num_gpu_blocks_override": pages + pages // 8, "kv_offloading_size": 4,
    }  # fmt: skip
    return Engine.from_config(EngineConfig.from_options({**fixed, **options}))


def first_token(engine: Engine, name: str, prompt: np.ndarray) -> tuple[float, int]:
    """Seconds until a prompt's first token, and the token."""
    start = time.perf_counter()
    engine.add_request(Request(request_id=name, prompt_token_ids=prompt, params=SamplingParams(max_tokens=1)))
    found: list[int] = []
    while engine.has_unfinished_requests():
        found += [token for output in engine.step() for token in output.token_ids]
    return time.perf_counter() - start, found[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--option", action="append", default=[], help="of the engine: NAME=VALUE, the value as JSON")
    options = parser.parse_args(arguments)
    given = {name: json.loads(value) for name, _, value in (each.partition("=") for each in options.option)}
    logging.basicConfig(level=logging.INFO)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        model = write_reference_model(Path(scratch) / "model", max_position_embeddings=options.tokens + 64)
        engine = make_engine(model, options.tokens, given)
    prompts = [rng.integers(3, 1000, options.tokens).astype(np.int32) for _ in range(options.repeats)]
    computed = [first_token(engine, f"computed {index}", prompt)[0] for index, prompt in enumerate(prompts)]
    time.sleep(1)
    found = []
    for index, prompt in enumerate(prompts):
        before = engine.stats().offload.hits
        found.append(first_token(engine, f"found {index}", prompt)[0])
        assert engine.stats().offload.hits > before, "nothing came from the host"
    print(
        json.dumps(
            {
                "tokens": options.tokens,
                "computed_seconds": statistics.median(computed),
                "found_seconds": statistics.median(found),
                "ratio": statistics.median(computed) / statistics.median(found),
                "dropped": engine.stats().offload.dropped,
            }
        )
    )
    engine.close()


if __name__ == "__main__":
    main()

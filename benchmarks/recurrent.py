"""Decodes of a model whose layers are all recurrent, with contexts of 100 and of 100,000 tokens: they cost the same."""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

CONTEXTS = (100, 10_000, 100_000)
_CONFIG = {
    "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "vocab_size": 8192, "hidden_size": 512,
    "num_hidden_layers": 8, "state_size": 64, "num_heads": 16, "head_dim": 64, "n_groups": 1, "expand": 2,
    "conv_kernel": 4, "chunk_size": 256, "tie_word_embeddings": True,
}  # fmt: skip


def decode_ms(engine: Engine, context: int, steps: int, repeat: int) -> list[float]:
    """Milliseconds of a step that decodes one request after so many tokens, the mean of each of `repeat` groups."""
    prompt = np.random.default_rng(0).integers(3, engine.info.vocab_size, context).astype(np.int32)
    params = SamplingParams(temperature=0, max_tokens=steps * (repeat + 1) + 1, ignore_eos=True)
    engine.add_request(Request(request_id="0", prompt_token_ids=prompt, params=params))
    while not engine.step():
        pass
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        for _ in range(steps):
            engine.step()
        times.append((time.perf_counter() - start) / steps * 1e3)
    while engine.has_unfinished_requests():
        engine.step()
    return times[1:]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each context."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=list(CONTEXTS), help="tokens before a decode")
    parser.add_argument("--steps", type=int, default=50, help="decodes of a group")
    parser.add_argument("--repeat", type=int, default=5, help="groups")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(_CONFIG))
        longest = max(options.contexts) + options.steps * (options.repeat + 2)
        fixed = {"load_format": "dummy", "enforce_eager": True, "enable_prefix_caching": False, "max_num_seqs": 1}
        sizes = {"max_model_len": longest, "max_num_batched_tokens": 1024}
        engine = Engine.from_config(EngineConfig.from_options({"model": scratch, **fixed, **sizes}))
    try:
        decode_ms(engine, 100, options.steps, 1)  # compiles
        for context in options.contexts:
            times = decode_ms(engine, context, options.steps, options.repeat)
            print(f"{context:8} tokens: {np.median(times):.3f} ms a decode [{min(times):.3f}, {max(times):.3f}]")
    finally:
        engine.close()


if __name__ == "__main__":
    main()

"""Greedy answers of an engine in a process of its own, so that several can be compared: other devices, a second start.

`python -m jaxllm.doctor.engine_run` reads a `Wanted` as JSON from standard input and writes an `Answers` as JSON.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.doctor.child import private_stdout
from jaxllm.doctor.result import Context, ending
from jaxllm.errors import EngineError

PROMPT_LENGTHS = (3, 40, 17, 25)
NEW_TOKENS = 24
_ALTERNATIVES = 5
_MAX_MODEL_LEN = 128


class Wanted(msgspec.Struct, frozen=True):
    """Engine options by name."""

    options: dict[str, Any]


class Answers(msgspec.Struct, frozen=True):
    """An engine's tokens, and the device it ran on. `alternatives` are the most likely tokens of each step, with logs.

    `sizes` are the tensor-parallel sizes that the model allows, `warnings` what the engine logged.
    """

    tokens: list[list[int]]
    alternatives: list[list[dict[int, float]]]
    start_seconds: float
    platform: str
    dtype: str
    devices: int
    sizes: list[int]
    parameters: int
    warnings: list[str]


def engine_answers(
    context: Context, options: Mapping[str, Any], cache: Path, variables: Mapping[str, str] | None = None
) -> Answers:
    """Start an engine with these options besides the usual ones, and have it generate. `cache` keeps its executables.

    Raises `EngineError` with the end of what it said when it fails.
    """
    settings = context.settings
    given = {
        "model": settings.model,
        "load_format": settings.load_format,
        "max_model_len": _MAX_MODEL_LEN,
        "max_num_seqs": len(PROMPT_LENGTHS),
        "max_num_batched_tokens": 64,
        "enforce_eager": True,
        "compilation_cache_dir": str(cache),
        **options,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jaxllm.doctor.engine_run"],
        input=msgspec.json.encode(Wanted(given)),
        capture_output=True,
        env={**os.environ, **(variables or {})},
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    sys.stderr.write(said)
    if done.returncode:
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "no output")
        raise EngineError(f"the engine {ending(done.returncode)}: {last}")
    return msgspec.json.decode(done.stdout, type=Answers)


def generate(wanted: Wanted) -> Answers:
    """Start an engine in this process and have it generate."""
    import jax
    from flax import nnx

    from jaxllm.engine.engine import Engine
    from jaxllm.executor.resolve import resolve_config
    from jaxllm.models.causal_lm import abstract_model
    from jaxllm.models.sharding import working_sizes
    from jaxllm.requests.request import Request
    from jaxllm.requests.sampling_params import SamplingParams

    warnings: list[str] = []
    logging.getLogger("jaxllm").addHandler(_Collector(warnings))
    config = EngineConfig.from_options(wanted.options)
    begin = time.perf_counter()
    engine = Engine.from_config(config)
    seconds = time.perf_counter() - begin
    # What is said of a second look at the devices is not about the engine.
    said = list(warnings)
    resolved = resolve_config(config)
    rng = np.random.default_rng(0)
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=_ALTERNATIVES)
    tokens: dict[str, list[int]] = {}
    alternatives: dict[str, list[dict[int, float]]] = {}
    for index, length in enumerate(PROMPT_LENGTHS):
        prompt = rng.integers(0, resolved.model.vocab_size, length).astype(np.int32)
        engine.add_request(Request(request_id=str(index), prompt_token_ids=prompt, params=params))
        tokens[str(index)], alternatives[str(index)] = [], []
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
            alternatives[output.request_id] += [
                dict(zip(each.top_ids, each.top_logprobs, strict=True)) for each in output.logprobs or ()
            ]
    engine.close()
    model = abstract_model(resolved.model, resolved.forward, resolved.dtype)
    return Answers(
        tokens=list(tokens.values()),
        alternatives=list(alternatives.values()),
        start_seconds=round(seconds, 2),
        platform=resolved.platform,
        dtype=resolved.dtype,
        devices=len(jax.local_devices()),
        sizes=working_sizes(resolved.model, expert_parallel=resolved.forward.expert_parallel),
        parameters=sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model))),
        warnings=said,
    )


class _Collector(logging.Handler):
    """Keeps warnings."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def main() -> None:
    """Read what is wanted, and write the answers."""
    answers = private_stdout()
    answers.write(msgspec.json.encode(generate(msgspec.json.decode(sys.stdin.buffer.read(), type=Wanted))).decode())
    answers.close()


if __name__ == "__main__":
    main()

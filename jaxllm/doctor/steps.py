"""Stage `steps`: how long steps of an engine take, compared with what `jaxllm plan` says."""

import json
import statistics
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.doctor.greedy import CACHE
from jaxllm.doctor.result import Context, Outcome
from jaxllm.engine.engine import Engine
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import chip_of
from jaxllm.planning.memory import measure
from jaxllm.planning.roofline import CONTEXT, estimate
from jaxllm.planning.target import find_target
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

LARGEST_RATIO = 3.0
"""Measured times beyond this many times the planned ones are called slow, where these are not tiny."""
LEAST_SECONDS = 1e-3


@dataclass(frozen=True)
class Load:
    """Requests that decode at once, tokens of their prompts and after these, and the prompt that is measured alone.

    All must be decoding before the first one ends: `outputs` outlasts the steps of their prompts.
    """

    batches: tuple[int, ...]
    context: int
    outputs: int
    prompt: int


_ON_CPU, _ELSEWHERE = Load((1, 8), 64, 24, 64), Load((1, 8, 64), CONTEXT, 96, 2048)

LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
"""In place of the demo model on accelerators, for which that one is too small to measure: a billion parameters."""


def run(context: Context) -> Outcome:
    """Let requests prefill and decode, one shape after the other."""
    context.say("starting JAX")
    device = jax.local_devices()[0]
    load = _ON_CPU if device.platform == "cpu" else _ELSEWHERE
    config, title = _config(context, load, device.platform)
    resolved = resolve_config(config)
    context.say(f"starting an engine of {title}")
    engine = Engine.from_config(config)
    measured: list[dict[str, Any]] = []
    for batch in load.batches:
        context.say(f"decoding {batch} requests of {load.context} tokens")
        _note(measured, engine, "decode", batch, [load.context] * batch, load.outputs)
    context.say(f"prefill of {load.prompt} tokens")
    _note(measured, engine, "prefill", load.prompt, [load.prompt] * 4, 1)
    _add_plan(measured, resolved, device)
    figures = {"model": title, "attention": resolved.forward.attention, "steps": measured}
    summary = f"{title}, {resolved.backend('attention')} attention: " + ", ".join(map(_format_step, measured))
    slow = [each for each in measured if each.get("ratio", 0) > LARGEST_RATIO and each["planned"] > LEAST_SECONDS]
    if slow:
        return Outcome(summary, figures, "slow", "far from the roofline: send us the report")
    return Outcome(summary, figures)


def _config(context: Context, load: Load, platform: str) -> tuple[EngineConfig, str]:
    """The engine, and what to call its model."""
    model, load_format = context.settings.model, context.settings.load_format
    title = model
    if model == "demo" and platform != "cpu":
        folder = context.scratch / "llama-1b"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA_1B))
        model, load_format, title = str(folder), "dummy", "a Llama with 1 B random parameters"
    options = {
        "model": model,
        "load_format": load_format,
        "max_model_len": max(load.prompt + 1, load.context + load.outputs),
        "max_num_seqs": max(load.batches),
        "max_num_batched_tokens": load.prompt,
        "enable_prefix_caching": False,
        # Compilers that take several threads have all shapes soon; that for TPUs does not.
        "enforce_eager": platform != "gpu",
        # Earlier stages have left kernels for CPUs there.
        "compilation_cache_dir": str(context.scratch / CACHE),
    }
    return EngineConfig.from_options(options), title


def _note(
    measured: list[dict[str, Any]], engine: Engine, work: str, tokens: int, prompts: list[int], outputs: int
) -> None:
    """Run the prompts together twice, and keep the second run's times of full steps of `tokens`."""
    _run(engine, work, tokens, prompts, outputs)
    times = _run(engine, work, tokens, prompts, outputs)
    if times:
        measured.append({"work": work, "tokens": tokens, "seconds": statistics.median(times), "steps": len(times)})


def _run(engine: Engine, work: str, tokens: int, prompts: list[int], outputs: int) -> list[float]:
    """Seconds of steps that are full: of requests that all decode, or of one prompt."""
    rng = np.random.default_rng(0)
    params = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True)
    times = []
    for index, length in enumerate(prompts):
        ids = rng.integers(0, engine.info.vocab_size, length).astype(np.int32)
        engine.add_request(Request(request_id=str(index), prompt_token_ids=ids, params=params))
    while engine.has_unfinished_requests():
        engine.step()
        stats = engine.stats()
        rows = tokens if work == "decode" else 1
        if stats.num_tokens == tokens == stats.bucket_tokens and stats.num_rows == rows:
            times.append(stats.step_seconds)
    return times


def _add_plan(measured: list[dict[str, Any]], resolved: ResolvedConfig, device: jax.Device) -> None:
    """The estimate of `jaxllm plan` for the same steps, where the chip is known."""
    chip = chip_of(device.device_kind)
    if chip is None:
        return
    memory = measure(resolved, find_target(None, None, 1))
    for each in measured:
        rows = each["tokens"] if each["work"] == "decode" else resolved.max_num_seqs
        guess = estimate(resolved, chip, memory.weights, memory.page, Bucket(each["tokens"], rows))
        each.update(planned=guess.seconds, bound=guess.bound, ratio=each["seconds"] / guess.seconds)


def _format_step(step: dict[str, Any]) -> str:
    plan = f" (planned {step['planned'] * 1e3:.2f})" if "planned" in step else ""
    return f"{step['work']} {step['tokens']}: {step['seconds'] * 1e3:.2f} ms{plan}"

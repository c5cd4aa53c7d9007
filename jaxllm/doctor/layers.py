"""Stage `layers`: one layer and four of the model, with random weights, compared with float32 on the CPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.doctor.attention_cases import resolve_model
from jaxllm.doctor.greedy import CACHE
from jaxllm.doctor.result import Context, Outcome
from jaxllm.executor.compile.executables import ENGINES
from jaxllm.executor.kernels.native import begin_kernels
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache, make_cache
from jaxllm.models.causal_lm import CausalLM, load_model
from jaxllm.models.checkpoint.random_weights import RandomWeights
from jaxllm.models.config import ModelConfig
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention.cases import Case, make_inputs

LIMITS: dict[str, dict[str, float]] = {"float32": {"cpu": 1e-4}, "bfloat16": {}, "float16": {}}
"""Root mean square of the differences of logits, as a share of that of the logits."""
OTHER_LIMITS = {"float32": 2e-2, "bfloat16": 5e-2, "float16": 2e-2}
"""Float32 on accelerators: products are rounded to TF32 or bfloat16 unless one asks for more."""

MOST_TOKENS = 8192
"""Rows of the vocabulary that are checked, which is enough for the output layer."""

Compute = Callable[[CausalLM, str], np.ndarray]
"""What is computed of a model in a type."""

PROMPTS = (1, 40, 9)
"""Tokens of three prompts, which are then continued by one token. One token is a decode, and decodes come first."""


def run(context: Context) -> Outcome:
    """Compare the logits of prompts and of a decode."""
    resolved = resolve_model(context)
    platform, dtype = resolved.platform, resolved.dtype
    limit, logits = limit_of(resolved), partial(_logits, page_size=resolved.page_size)
    found: dict[int, float] = {}
    for layers in (1, 4):
        model = shortened(resolved.model, layers)
        if model.num_layers not in found:
            context.say(f"{layers} layer(s) in {dtype} on {platform}")
            given = on_device(resolved, model, logits, context)
            context.say(f"{layers} layer(s) in float32 on the CPU")
            wanted = on_cpu(resolved, model, logits)
            difference = float(np.sqrt(np.mean((given - wanted) ** 2) / np.mean(wanted**2)))
            found[model.num_layers] = difference if np.isfinite(difference) else float("inf")
    errors = ", ".join(f"{layers} layer{'s' if layers > 1 else ''} {error:.1e}" for layers, error in found.items())
    summary = (
        f"{dtype} with {resolved.backend('attention')} attention against float32 on the CPU: {errors} of {limit:.0e}"
    )
    figures: dict[str, Any] = {
        "limit": limit,
        "errors": {str(layers): "infinite" if error == float("inf") else error for layers, error in found.items()},
    }
    if max(found.values()) > limit:
        advice = "if the attention stage passes, other kernels or the compiler are at fault: send us the report"
        return Outcome(f"{summary}: too large", figures, "failed", advice)
    return Outcome(summary, figures)


def shortened(model: ModelConfig, layers: int) -> ModelConfig:
    """The first layers of a model, with fewer tokens."""
    embedding, each = model.embedding, model.embedding.each_layer
    if each is not None:
        embedding = replace(embedding, each_layer=replace(each, vocab_size=min(each.vocab_size, MOST_TOKENS)))
    vocab_size = min(model.vocab_size, MOST_TOKENS)
    return replace(model, layers=model.layers[:layers], vocab_size=vocab_size, embedding=embedding)


def limit_of(resolved: ResolvedConfig) -> float:
    """See `LIMITS`."""
    return LIMITS[resolved.dtype].get(resolved.platform, OTHER_LIMITS[resolved.dtype])


def on_device(resolved: ResolvedConfig, model: ModelConfig, compute: Compute, context: Context) -> np.ndarray:
    """What is computed of a model with random weights, as the engine would here."""
    # The engines of later stages find the kernels there.
    begin_kernels(resolved, context.scratch / CACHE / ENGINES)()
    return compute(_random(model, resolved.forward, resolved.dtype), resolved.dtype)


def on_cpu(resolved: ResolvedConfig, model: ModelConfig, compute: Compute, *, sees_images: bool = False) -> np.ndarray:
    """The same weights, rounded as on the device, in float32."""
    length = resolved.max_model_len
    options = ForwardOptions(
        platform="cpu", attention="xla", stack="loop", max_model_len=length, sees_images=sees_images
    )
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        made = _random(model, options, "float32")
        graph, state = nnx.split(made)
        rounded = jax.tree.map(lambda leaf: leaf.astype(resolved.dtype).astype(jnp.float32), state)
        return compute(nnx.merge(graph, rounded), "float32")


def _random(model: ModelConfig, options: ForwardOptions, dtype: str) -> CausalLM:
    return load_model(RandomWeights(), model, options, dtype)


def _logits(model: CausalLM, dtype: str, page_size: int) -> np.ndarray:
    """Logits of every prompt token, and of the token after each prompt."""
    config = model.config
    prefill = Case(
        "prompts",
        tuple((length, 0) for length in PROMPTS),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        page_size=page_size,
    )
    decode = replace(prefill, rows=tuple((1, length) for length in PROMPTS))
    after = make_inputs(decode)
    pages, layout = after.kv_cache.shape[1], model.layout
    shape = layout.array(config, layers=model.cache.depth, pages=pages, page_size=page_size)
    cache = make_cache(model.cache, shape, len(PROMPTS), dtype, page_dtype=layout.dtype)
    graph, state = nnx.split(model)

    @jax.jit
    def forward(state: Any, batch: Batch, cache: Cache) -> tuple[jax.Array, Cache]:
        merged = nnx.merge(graph, state)
        hidden, cache = merged(batch, cache)
        return merged.logits(hidden), cache

    found = []
    # The decodes' table: it has the pages that they grow into.
    for case, batch in ((prefill, make_inputs(prefill).batch), (decode, after.batch)):
        ids = np.random.default_rng(case.num_tokens).integers(0, config.vocab_size, case.num_tokens).astype(np.int32)
        ragged = replace(batch, page_table=after.batch.page_table)
        slots = jnp.arange(len(PROMPTS), dtype=jnp.int32)
        logits, cache = forward(state, Batch(jnp.asarray(ids), ragged, slots), cache)
        found.append(np.asarray(logits, np.float32))
    return np.concatenate(found)

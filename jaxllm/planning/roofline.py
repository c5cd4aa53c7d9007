"""How long a step takes at the least: what it must read and compute, against the chip's peaks.

An estimate, and a low one. Not counted: communication between devices, activations, the start of every kernel, and
all in which kernels stay behind their roofline. The compiler's own cost analysis is no substitute: it counts the body
of a loop over layers once.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import msgspec

from jaxllm.models.config import ModelConfig
from jaxllm.pallas_kernels.chips import Chip
from jaxllm.runner.buckets import Bucket
from jaxllm.runner.plan import Plan

CONTEXT = 1024
"""Tokens that a decoding request has behind it, unless requests must be shorter."""


class StepEstimate(msgspec.Struct, frozen=True):
    """A step of one bucket at its roofline: the whole bucket in use, by requests that all decode, or by one prompt."""

    work: str
    """'decode' or 'prefill'."""
    seconds: float
    tokens_per_second: float
    """Of all devices together: generated, or of the prompt."""
    bound: str
    """'memory' or 'compute': what it waits for."""


@dataclass(frozen=True)
class Work:
    """What one device does in a step: operations of the matrix units, and bytes of its memory."""

    flops: float
    bytes: float


def estimate(plan: Plan, chip: Chip, weight_bytes: int, page_bytes: int, bucket: Bucket) -> StepEstimate:
    """The step of a bucket. `weight_bytes` and `page_bytes` are those of one device.

    A bucket with a request for every token is taken to decode, each request `CONTEXT` tokens into its text; any other
    to compute the first tokens of one prompt.
    """
    decode = bucket.tokens <= bucket.rows
    context = min(CONTEXT, plan.max_model_len)
    lengths = [context] * bucket.tokens if decode else list(range(1, bucket.tokens + 1))
    work = step_work(plan, weight_bytes, page_bytes, lengths, rows=bucket.tokens if decode else 1)
    compute, memory = work.flops / chip.bf16_flops, work.bytes / chip.hbm_bandwidth
    seconds = max(compute, memory)
    return StepEstimate(
        work="decode" if decode else "prefill",
        seconds=seconds,
        tokens_per_second=bucket.tokens / seconds,
        bound="compute" if compute > memory else "memory",
    )


def step_work(plan: Plan, weight_bytes: int, page_bytes: int, lengths: list[int], rows: int) -> Work:
    """The work of one device, for tokens that each see `lengths` tokens, themselves included, in `rows` requests.

    Requests of a prefill read what they have just written, once for all their tokens.
    """
    model, devices = plan.model, plan.num_devices
    item = jnp.dtype(plan.dtype).itemsize
    table = plan.vocab_size * model.hidden_size
    # Of the embedding only single rows are read, unless it gives the logits as well.
    read = weight_bytes - (0 if model.tie_word_embeddings else table * item // devices)
    per_token = 2 * (_layer_weights(model) * len(lengths) + table * rows)
    seen = sum(sum(min(length, window or length) for length in lengths) for window in model.windows)
    attention = 4 * model.num_heads * model.head_size * seen
    longest = sum(lengths) if rows == len(lengths) else max(lengths)
    cache = (longest + len(lengths)) * page_bytes / plan.config.cache.block_size
    return Work((per_token + attention) / devices, read + cache)


def _layer_weights(model: ModelConfig) -> int:
    """Numbers in the matrices of all layers."""
    query, value = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    attention = model.hidden_size * (2 * query + 2 * value)
    return model.num_layers * (attention + 3 * model.hidden_size * model.intermediate_size)

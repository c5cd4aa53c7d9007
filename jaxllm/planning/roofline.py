"""How long a step may take: what it must read, compute and send, against the chip's peaks.

An estimate, and a low one. Matrices are taken at their roofline, and attention at the share of its own that the static
model found for the kernel (`pallas_kernels/tuned`); the parts follow each other. Not counted: activations, sampling,
the start of every kernel. The compiler's own cost analysis is no substitute: it counts the body of a loop over layers
once.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import msgspec

from jaxllm.models.config import ModelConfig
from jaxllm.models.sharding import split_kv_heads
from jaxllm.pallas_kernels.chips import Chip
from jaxllm.pallas_kernels.tuning import nearest_share
from jaxllm.planning.communication import communication_seconds
from jaxllm.runtime.programs.buckets import Bucket
from jaxllm.runtime.resolved import ResolvedConfig

CONTEXT = 1024
"""Tokens that a decoding request has behind it, unless requests must be shorter."""


class StepEstimate(msgspec.Struct, frozen=True):
    """A step of one bucket: the whole bucket in use, by requests that all decode, or by one prompt.

    `seconds` is the sum of `matrices`, `attention` and `communication`.
    """

    work: str
    """'decode' or 'prefill'."""
    seconds: float
    tokens_per_second: float
    """Of all devices together: generated, or of the prompt."""
    bound: str
    """'memory', 'compute' or 'links': what the longest part waits for."""
    matrices: float
    attention: float
    communication: float | None
    """Between devices; None where it is not known, and not counted."""
    attention_share: float | None
    """Part of its roofline that attention is taken to reach; None where no figure is known and it is taken as 1."""


@dataclass(frozen=True)
class Work:
    """What one device does in a step: operations of the matrix units, and bytes of its memory."""

    flops: float
    bytes: float

    def seconds(self, chip: Chip) -> float:
        """At the roofline."""
        return max(self.flops / chip.bf16_flops, self.bytes / chip.hbm_bandwidth)

    def bound(self, chip: Chip) -> str:
        """'memory' or 'compute'."""
        return "compute" if self.flops / chip.bf16_flops > self.bytes / chip.hbm_bandwidth else "memory"


def estimate(resolved: ResolvedConfig, chip: Chip, weight_bytes: int, page_bytes: int, bucket: Bucket) -> StepEstimate:
    """The step of a bucket. `weight_bytes` and `page_bytes` are those of one device.

    A bucket with a request for every token is taken to decode, each request `CONTEXT` tokens into its text; any other
    to compute the first tokens of one prompt.
    """
    kind = "decode" if bucket.tokens <= bucket.rows else "prefill"
    context = min(CONTEXT, resolved.max_model_len)
    lengths = [context] * bucket.tokens if kind == "decode" else list(range(1, bucket.tokens + 1))
    rows = bucket.tokens if kind == "decode" else 1
    matrices, attention = (
        matrix_work(resolved, weight_bytes, len(lengths), rows),
        attention_work(resolved, page_bytes, lengths),
    )
    share = attention_share(resolved, chip, kind)
    sending = communication_seconds(resolved, chip, bucket.tokens)
    parts = (
        (matrices.seconds(chip), matrices.bound(chip)),
        (attention.seconds(chip) / (share or 1), attention.bound(chip)),
        (sending or 0.0, "links"),
    )
    seconds = sum(time for time, _ in parts)
    return StepEstimate(
        work=kind,
        seconds=seconds,
        tokens_per_second=bucket.tokens / seconds,
        bound=max(parts)[1],
        matrices=parts[0][0],
        attention=parts[1][0],
        communication=sending,
        attention_share=share,
    )


def matrix_work(resolved: ResolvedConfig, weight_bytes: int, tokens: int, rows: int) -> Work:
    """The work of one device beside attention, with logits for `rows` of the tokens."""
    model, devices = resolved.model, resolved.num_devices
    item = jnp.dtype(resolved.dtype).itemsize
    table = resolved.vocab_size * model.hidden_size
    # Of the embedding only single rows are read, unless it gives the logits as well.
    read = weight_bytes - (0 if model.tie_word_embeddings else table * item // devices)
    return Work(2 * (_layer_weights(model) * tokens + table * rows) / devices, read)


def attention_work(resolved: ResolvedConfig, page_bytes: int, lengths: list[int]) -> Work:
    """The work of one device in attention, for tokens that each see `lengths` tokens, themselves included.

    Tokens that see as many are requests of their own, which each read what they see; others are one prompt, which is
    read once for all of them.
    """
    model = resolved.model
    seen = sum(sum(min(length, window or length) for length in lengths) for window in model.windows)
    read = sum(lengths) if lengths[0] == lengths[-1] else lengths[-1]
    cache = (read + len(lengths)) * page_bytes / resolved.page_size
    return Work(4 * model.num_heads * model.head_size * seen / resolved.num_devices, cache)


def attention_share(resolved: ResolvedConfig, chip: Chip, kernel: str) -> float | None:
    """Part of its roofline that the kernel reaches by the static model, in the nearest case that was looked at."""
    if resolved.forward.attention != "tpu":
        return None
    model, devices = resolved.model, resolved.num_devices
    heads = split_kv_heads(model, devices) // devices
    key: dict[str, int | str] = {
        "kernel": kernel,
        "head_size": model.head_size,
        "num_kv_heads": heads,
        "group": model.num_heads // devices // heads,
        "page_size": resolved.page_size,
        "q_dtype": resolved.dtype,
        "kv_dtype": resolved.dtype,
    }
    return nearest_share("paged_attention", chip.name, key)


def _layer_weights(model: ModelConfig) -> int:
    """Numbers in the matrices of all layers."""
    query, value = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    attention = model.hidden_size * (2 * query + 2 * value)
    return model.num_layers * (attention + 3 * model.hidden_size * model.intermediate_size)

"""How long a step may take: what it must read, compute and send, against the chip's peaks.

An estimate, and a low one. Matrices are taken at their roofline, and attention at the share of its own that the static
model found for the kernel (`pallas_kernels/tuned`); the parts follow each other. Not counted: activations, sampling,
the start of every kernel. The compiler's own cost analysis is no substitute: it counts the body of a loop over layers
once.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp
import msgspec

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.memory.capacity import slot_bytes
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.attention_plan import AnyAttentionPlan, AttentionPlan, CompressedAttentionPlan, GroupIndexPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.gram_plan import WithGramsPlan
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan
from jaxllm.models.plan import GatedStreamsPlan, HyperConnectionsPlan
from jaxllm.models.sharding import split_kv_heads
from jaxllm.pallas_kernels.chips import Chip
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.tuning import nearest_share
from jaxllm.planning.communication import communication_seconds
from jaxllm.planning.looks import looks_of

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.linear.weight_type import WeightType

CONTEXT = 1024
"""Tokens that a decoding request has after it, unless requests must be shorter."""


class StepEstimate(msgspec.Struct, frozen=True):
    """A step of one bucket: the whole bucket in use, by requests that all decode, or by one prompt.

    `seconds` is the sum of `matrices`, `attention` and `communication`. With stages it is a step's way through all of
    them, and `tokens_per_second` are those of as many steps under way: one ends every `interval` seconds.
    """

    work: str
    """'decode' or 'prefill'."""
    seconds: float
    tokens_per_second: float
    """Throughput of all devices together, in generated or prompt tokens."""
    bound: str
    """'memory', 'compute' or 'links': what the longest part waits for."""
    matrices: float
    attention: float
    communication: float | None
    """Between devices; None where it is not known, and not counted."""
    attention_share: float | None
    """Part of its roofline that attention is taken to reach; None where no figure is known and it is taken as 1."""
    interval: float | None = None
    """The time of the slowest of several stages; None where there is one."""


class DraftsEstimate(msgspec.Struct, frozen=True):
    """A step of so many `requests` that decode, each with as many `drafts`, and the same step without."""

    requests: int
    drafts: int
    seconds: float
    seconds_without: float

    @property
    def least_accepted(self) -> float:
        """Drafts of a request that must be right in a step, for it to give as many tokens a second as without."""
        return self.seconds / self.seconds_without - 1


@dataclass(frozen=True)
class Work:
    """The work of one device in a step: operations of the matrix units, and bytes of its memory."""

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


def estimate_drafts(
    resolved: ResolvedConfig, chip: Chip, weight_bytes: int, page_bytes: int, requests: int, drafts: int
) -> DraftsEstimate:
    """A step of `requests` that decode, `CONTEXT` tokens into their texts, with `drafts` each.

    The tokens of a request read what it sees once. What makes the drafts is not counted.
    """
    context, share = min(CONTEXT, resolved.max_model_len), attention_share(resolved, chip, "decode")

    def seconds(each: int) -> float:
        tokens = requests * each
        matrices = matrix_work(resolved, weight_bytes, tokens, tokens)
        once = attention_work(resolved, page_bytes, [context] * requests)
        attention = Work(each * once.flops, once.bytes)
        sending = communication_seconds(resolved, chip, tokens) or 0.0
        return matrices.seconds(chip) + attention.seconds(chip) / (share or 1) + sending

    return DraftsEstimate(requests, drafts, seconds(1 + drafts), seconds(1))


def matrix_work(resolved: ResolvedConfig, weight_bytes: int, tokens: int, rows: int) -> Work:
    """The work of one device alongside attention, with logits for `rows` of the tokens."""
    model, devices, stage = resolved.stage_model, resolved.num_devices, resolved.stage
    item = jnp.dtype(resolved.dtype).itemsize
    table = resolved.vocab_size * model.hidden_size
    embeds, gives_logits = stage is None or stage.is_first, stage is None or stage.is_last
    # Only single rows of the embedding are read, unless it is also the output layer, and only the chosen experts.
    unread = _unread_experts(model, tokens, item)
    if embeds and not (model.tie_word_embeddings and gives_logits):
        unread += table * _bytes_each(model.weight_types, "embedding", item)
    each = model.embedding.each_layer
    unread += 0 if each is None else each.vocab_size * each.size * model.num_layers * item
    # N-grams are read row by row as well.
    grams = (plan.grams for plan in model.recurrences if isinstance(plan, WithGramsPlan))
    unread += sum(sum(plan.shards) * plan.size * item for plan in grams)
    read = weight_bytes - int(unread) // devices
    logits = table * rows if gives_logits else 0
    return Work(2 * (_layer_weights(model) * tokens + logits) / devices, read)


def attention_work(resolved: ResolvedConfig, page_bytes: int, lengths: list[int]) -> Work:
    """The work of one device in attention, for tokens that each see `lengths` tokens, themselves included.

    Recurrent layers read and write the state of each request, whatever its length; their operations are not counted.
    Tokens that see as many are requests of their own, which each read what they see; others are one prompt, which is
    read once for all of them.
    """
    model, plan = resolved.stage_model, resolved.cache_plan
    cache = flops = 0.0
    for layer, share in zip(model.layers, plan.shares, strict=True):
        if layer.recurrence is not None:
            continue
        # A page holds some of the layers. Who reads the keys of another layer writes none.
        read: float = len(lengths) if layer.attention.source is None else 0
        for look in looks_of(model, layer.attention, resolved.num_devices):
            window = look.window
            read += look.part * _read(window, lengths)
            flops += look.flops * sum(min(length, window or length) for length in lengths)
        cache += read * page_bytes / resolved.page_size / max(plan.depth, 1) / share
    requests = len(lengths) if lengths[0] == lengths[-1] else 1
    states = 2 * requests * slot_bytes(resolved)
    return Work(flops, cache + states)


def _read(window: int, lengths: list[int]) -> int:
    """Tokens whose keys and values a layer with this window (0: none) reads."""
    if lengths[0] == lengths[-1]:
        return sum(min(length, window or length) for length in lengths)
    return lengths[-1]


def attention_share(resolved: ResolvedConfig, chip: Chip, kernel: str) -> float | None:
    """Part of its roofline that the kernel reaches by the static model, in the nearest case that was looked at.

    Where layers differ, in that of most of them. Heads below 128 share rows or are padded: to the kernel they are
    wider, and products with zeros do nothing useful.
    """
    if resolved.forward.attention != "tpu" or resolved.model.latent is not None:
        return None
    model, devices = resolved.stage_model, resolved.num_devices
    kinds = Counter(
        (model.heads_of(layer.attention), model.kv_heads_of(layer.attention), model.head_size_of(layer.attention))
        for layer in model.attention_layers
    )
    none = ((model.num_heads, model.num_kv_heads, model.head_size), 0)
    ((num_heads, num_kv_heads, head_size), _), *_ = kinds.most_common(1) or [none]
    heads = split_kv_heads(num_kv_heads, devices) // devices
    shared = SharedRows(heads, num_heads // devices // heads, head_size)
    key: dict[str, int | str] = {
        "kernel": kernel,
        "head_size": shared.lanes,
        "num_kv_heads": shared.rows,
        "group": shared.wide_group,
        "page_size": resolved.page_size,
        "q_dtype": resolved.dtype,
        "kv_dtype": resolved.kv_dtype,
    }
    share = nearest_share("paged_attention", chip.name, key)
    return share if share is None or kernel == "decode" else share * head_size / shared.lanes


def _layer_weights(model: ModelConfig) -> int:
    """Numbers in the matrices of all layers that a token is multiplied with."""
    attention = sum(_attention_weights(model, layer.attention) for layer in model.attention_layers)
    attention += sum(2 * model.hidden_size * plan.size for layer in model.layers if (plan := layer.token_input))
    each = model.embedding.each_layer
    attention += 0 if each is None else model.hidden_size * each.size * model.num_layers
    attention += _streams_weights(model)
    recurrences = sum(plan.num_weights(model.hidden_size) for plan in model.recurrences)
    residual = sum(_mlp_weights(model, layer.residual_mlp) for layer in model.layers)
    mlps = sum(_mlp_weights(model, layer.mlp) for layer in model.layers if layer.has_mlp)
    return attention + recurrences + residual + mlps


def _attention_weights(model: ModelConfig, plan: AnyAttentionPlan) -> int:
    """Numbers in the matrices of attention in a layer."""
    hidden = model.hidden_size
    if isinstance(plan, AttentionPlan):
        size = model.head_size_of(plan)
        own = 0 if plan.source is not None else 1 if plan.values_are_keys else 2
        queries = plan.index.heads if isinstance(plan.index, GroupIndexPlan) else model.kv_heads_of(plan)
        index = 0 if plan.index is None else plan.index.size * (queries + 1)
        return hidden * (size * (2 * model.heads_of(plan) + own * model.kv_heads_of(plan)) + index)
    if isinstance(plan, CompressedAttentionPlan):
        return _compressed_weights(model, plan)
    own = plan.rank + plan.rope_size if plan.source is None else 0
    down = hidden * (own + (plan.query_rank or 0))
    of_head = (plan.query_rank or hidden) * plan.query_size + (plan.rank * (plan.plain_size + plan.value_size))
    index = 0
    if plan.index is not None and not plan.shares_choice:
        index = plan.index.heads * (plan.index.size * (plan.query_rank or hidden) + hidden) + plan.index.size * hidden
    return down + index + model.heads_of(plan) * (of_head + plan.value_size * hidden)


def _compressed_weights(model: ModelConfig, plan: CompressedAttentionPlan) -> int:
    """The same of attention to entries in place of far keys."""
    hidden, heads, size = model.hidden_size, model.num_heads, plan.size
    down = hidden * (plan.query_rank + size + plan.raw_size)
    output = plan.group_rank * (heads * size + plan.groups * hidden)
    index = None if plan.compression is None else plan.compression.index
    chosen = 0 if index is None else index.heads * (index.size * plan.query_rank + hidden)
    return down + heads * size * plan.query_rank + output + chosen


def _streams_weights(model: ModelConfig) -> int:
    """Numbers in the larger matrices of residual streams.

    With alternating updates they are two for each further stream, and two in each layer; with hyper-connections one
    before each block; with gates of low rank one more before each block, and two there and after the layers.
    """
    plan = model.layers[0].streams
    if plan is None:
        return 0
    if isinstance(plan, HyperConnectionsPlan):
        rows = plan.count * (2 + (plan.count if plan.iterations else 0))
        return 2 * model.num_layers * rows * plan.count * model.hidden_size
    if isinstance(plan, GatedStreamsPlan):
        wide = plan.count * model.hidden_size
        return wide * (2 * plan.rank * (2 * model.num_layers + 1) + 2 * plan.count * model.num_layers)
    return 2 * model.hidden_size * ((plan.count - 1) * model.hidden_size + plan.rank * model.num_layers)


def _mlp_weights(model: ModelConfig, plan: MLPPlan | ExpertsPlan | None) -> int:
    """Numbers in the matrices of a block that a token is multiplied with."""
    if plan is None:
        return 0
    if isinstance(plan, ExpertsPlan):
        # Were each as likely as another, so many of those that compute are chosen.
        own = plan.per_token * plan.count * _expert_weights(model, plan) // (plan.count + plan.identities)
        own += (plan.count + plan.identities) * model.hidden_size
        return own + _mlp_weights(model, plan.shared)
    return (3 if plan.is_gated else 2) * model.hidden_size * (plan.size or model.intermediate_size)


def _expert_weights(model: ModelConfig, plan: ExpertsPlan) -> int:
    """Numbers in the matrices of one expert."""
    return (3 if plan.is_gated else 2) * model.hidden_size * plan.size


def _unread_experts(model: ModelConfig, tokens: int, item: int) -> float:
    """Bytes of the matrices of experts that none of so many tokens chooses, were each as likely as another."""
    return sum(
        _expert_weights(model, plan)
        * plan.count
        * (1 - plan.per_token / (plan.count + plan.identities)) ** tokens
        * _bytes_each(layer.weight_types, "mlp.expert_up", item)
        for layer in model.layers
        if isinstance(plan := layer.mlp, ExpertsPlan)
    )


def _bytes_each(types: "tuple[tuple[str, WeightType], ...]", name: str, item: int) -> float:
    """Bytes per value of the matrix with that name, including its share of scales; `item` is the unquantized size."""
    kind = dict(types).get(name)
    if kind is None:
        return item
    number = 0.5 if kind.code is not None else 1.0
    return number if kind.group is None else number + (4 if kind.scales == "float32" else 2) / kind.group

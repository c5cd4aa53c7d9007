"""Attention whose heads are experts': a token has the queries of a few, and what attention gives goes to the same."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ForwardContext, LayerContext
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.experts import ExpertLinear, Groups, Operands
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.layers.router import Choice, Router
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.models.options import AdapterShape, ForwardOptions
from jaxllm.models.sharding import MODEL, over_model, partition, sharding
from jaxllm.pallas_kernels.grouped_matmul import grouped_matmul


class HeadLinear(ExpertLinear):
    """A matrix of every expert, which has no adapters."""

    def add_slots(self, shape: AdapterShape) -> None:
        """None."""


class HeadExperts(nnx.Module):
    """A router, and the first and last product of every expert; see `HeadExpertsPlan`.

    Axis letters: k experts of a token, M heads of an expert.
    """

    def __init__(self, config: ModelConfig, plan: AttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        experts, size, hidden = plan.experts, config.head_size_of(plan), config.hidden_size
        assert experts is not None
        wide = config.kv_heads_of(plan) * size
        self.plan, self.mesh, self.platform, self.head_size = experts, options.mesh, options.platform, size
        chosen = ExpertsPlan(count=experts.count, per_token=experts.per_token, size=wide, router=_ROUTER)
        self.router = Router(hidden, chosen, dtype=dtype, options=options, vocab_size=config.vocab_size)
        linear = partial(HeadLinear, experts.count, bias=False, dtype=dtype, options=options)
        self.query = linear(hidden, {"expert_query": wide}, axes=("heads", "hidden"))
        self.output = linear(wide, {"expert_output": hidden}, axes=("hidden", "heads"))
        self.bias = parameter((hidden,), dtype, sharding(options.mesh, None))

    def choose(self, x: jax.Array, context: ForwardContext) -> Choice:
        """The experts of `x` [T, D]; padding chooses nobody."""
        experts, weights = self.router(x, context)
        if context.num_rows is not None:
            is_used = jnp.arange(len(x), dtype=jnp.int32) < context.num_rows
            experts = jnp.where(is_used[:, None], experts, self.plan.count)
        return experts, weights

    def queries(self, x: jax.Array, choice: Choice) -> jax.Array:
        """Queries [T, M * k * H] of `x` [T, D]: those of all experts for a KV head lie side by side."""

        def own(x: jax.Array, experts: jax.Array, operands: Operands) -> jax.Array:
            groups = self._groups(experts)
            out = self._multiply(groups, x[groups.order // self.plan.per_token], operands)
            by_head = out.reshape(*experts.shape, -1, self.head_size).swapaxes(1, 2)
            return by_head.reshape(len(x), -1)

        operands, whole = self.query.operands(), PartitionSpec()
        if self.mesh is None:
            return own(x, choice[0], operands)
        specs = (whole, whole, self.query.specs(operands))
        made: jax.Array = over_model(own, self.mesh, specs, partition(None, "heads"))(x, choice[0], operands)
        return made

    def joined(self, attended: jax.Array, choice: Choice) -> jax.Array:
        """The weighted sum [T, D] over experts of what attention gives, [T, M * k * H] like the queries."""

        def own(attended: jax.Array, experts: jax.Array, weights: jax.Array, operands: Operands) -> jax.Array:
            groups, count = self._groups(experts), experts.shape[1]
            heads = attended.reshape(len(attended), -1, count, self.head_size).swapaxes(1, 2)
            rows = heads.reshape(len(attended) * count, -1)[groups.order]
            out = self._multiply(groups, rows, operands).reshape(*experts.shape, -1)
            is_any = (experts < self.plan.count)[:, :, None]
            summed = jnp.where(is_any, out.astype(jnp.float32) * weights[:, :, None], 0.0).sum(axis=1)
            summed = summed.astype(attended.dtype)
            return summed if self.mesh is None else lax.psum(summed, MODEL)

        operands, whole, (experts, weights) = self.output.operands(), PartitionSpec(), choice
        if self.mesh is None:
            return own(attended, experts, weights, operands) + self.bias[...]
        specs = (partition(None, "heads"), whole, whole, self.output.specs(operands))
        summed: jax.Array = over_model(own, self.mesh, specs, whole)(attended, experts, weights, operands)
        return summed + self.bias[...]

    def _groups(self, experts: jax.Array) -> Groups:
        return Groups.of(experts, self.plan.count, None, self.platform)

    def _multiply(self, groups: Groups, rows: jax.Array, operands: Operands) -> jax.Array:
        """Rows in order of their experts times the matrix of each, in the order of choices."""
        out = grouped_matmul(rows, operands[0], groups.sizes, out_dtype=rows.dtype, platform=self.platform)
        return out[groups.places]


_ROUTER = RouterPlan(kind="chosen_softmax")


class ExpertAttention(Attention):
    """`Attention` with keys and values of its own, and queries and the last product of experts."""

    def __init__(self, config: ModelConfig, plan: AttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        super().__init__(config, plan, options, dtype=dtype)
        # Each expert has its own.
        del self.output
        self.experts = HeadExperts(config, plan, options, dtype=dtype)

    def __call__(self, x: jax.Array, kv_cache: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """See `Attention`."""
        forward = context.forward
        choice = self.experts.choose(x, forward)
        own = self.parts.split(self.query_key_value(x, forward))
        attended, kv_cache = self.attend_parts((self.experts.queries(x, choice), *own), kv_cache, context)
        return self.experts.joined(attended, choice), kv_cache

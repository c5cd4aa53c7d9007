"""The choice of experts for every token, see `RouterPlan`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.matrix import weight_of
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.linear import choose_layout, linear

Choice = tuple[jax.Array, jax.Array]
"""Experts of every token, int32 [T, k], and their weights, float32 [T, k]."""


class Router(nnx.Module):
    """A product that gives a logit for each expert, in float32, and the choice among them."""

    def __init__(
        self, hidden_size: int, plan: ExpertsPlan, *, dtype: jnp.dtype, options: ForwardOptions, vocab_size: int
    ) -> None:
        whole, count = sharding(options.mesh, None), plan.count + plan.identities
        self.layout = choose_layout(
            (count, hidden_size), dtype, native=options.native_matmul, multiplies_pairs=options.multiplies_pairs
        )
        self.weight = parameter(self.layout.shape, dtype, sharding(options.mesh, None, "hidden"), layout=self.layout)
        self.bias = parameter((count,), dtype, whole) if plan.router.bias else None
        exact = jnp.dtype(jnp.float32)
        self.correction = parameter((count,), exact, whole) if plan.router.correction else None
        self.plan, self.per_token, self.platform = plan.router, plan.per_token, options.platform
        self.norm = make_norm(plan.router.norm, hidden_size, dtype=dtype, options=options)
        self.input_scale = None if plan.router.norm is None else parameter((hidden_size,), dtype, whole)
        table = (vocab_size, plan.per_token)
        self.table = parameter(table, jnp.dtype(jnp.int32), whole) if plan.router.by_token else None
        self.expert_scale = parameter((count,), dtype, whole) if plan.router.expert_scale else None

    def __call__(self, x: jax.Array, context: ForwardContext) -> Choice:
        """The experts of `x` [T, D]."""
        x = self.norm(x)
        if self.input_scale is not None:
            x = x * self.input_scale[...] * jnp.asarray(x.shape[1] ** -0.5, x.dtype)
        logits = linear(x, weight_of(self.weight, self.layout), context.num_rows, platform=self.platform)
        if self.bias is not None:
            logits = logits + self.bias[...].astype(jnp.float32)
        if self.plan.soft_cap is not None:
            logits = self.plan.soft_cap * jnp.tanh(logits / self.plan.soft_cap)
        correction = None if self.correction is None else self.correction[...]
        experts, weights = choose(logits, self.plan, self.per_token, correction, self._listed(context))
        if self.expert_scale is not None:
            weights = weights * self.expert_scale[...].astype(jnp.float32)[experts]
        return experts, weights

    def _listed(self, context: ForwardContext) -> jax.Array | None:
        """The experts that a table has for the tokens, int32 [T, k]."""
        if self.table is None:
            return None
        assert context.token_ids is not None
        # What stands in a place that is no token's is nobody's.
        return self.table[...].at[context.token_ids].get(mode="clip")


def choose(
    logits: jax.Array,
    plan: RouterPlan,
    count: int,
    correction: jax.Array | None = None,
    listed: jax.Array | None = None,
) -> Choice:
    """The best `count` experts by `logits` float32 [T, E]; of equal ones those with the lowest numbers.

    A `correction` float32 [E] counts for the choice alone. Those that are `listed`, int32 [T, k], are no choice.
    """
    if plan.kind == "sparsemixer":
        return _sparse_mixer(logits, plan.jitter)
    scores = logits
    if not plan.kind.startswith("chosen"):
        scores = _SCORES[plan.kind](logits)
    for_choice = scores if correction is None else scores + correction
    if plan.groups > 1:
        for_choice = _best_groups(for_choice, plan)
    experts = lax.top_k(for_choice, count)[1] if listed is None else listed
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if plan.kind == "chosen_softmax":
        weights = jax.nn.softmax(weights)
    elif plan.kind == "chosen_sigmoid":
        weights = jax.nn.sigmoid(weights)
    if plan.normalised:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + plan.epsilon)
    return experts, weights * plan.scale


_SCORES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "softmax": jax.nn.softmax,
    "sigmoid": jax.nn.sigmoid,
    "root_softplus": lambda logits: jnp.sqrt(jax.nn.softplus(logits)),
}


def _best_groups(scores: jax.Array, plan: RouterPlan) -> jax.Array:
    """The same scores [T, E], with another for experts that are in none of the best groups."""
    grouped = scores.reshape(len(scores), plan.groups, -1)
    best = lax.top_k(grouped, 1 if plan.group_score == "best" else 2)[0].sum(axis=-1)
    _, chosen = lax.top_k(best, plan.top_groups)
    is_chosen = (chosen[:, :, None] == jnp.arange(plan.groups, dtype=jnp.int32)).any(axis=1)
    return jnp.where(is_chosen[:, :, None], grouped, plan.outside).reshape(scores.shape)


def _sparse_mixer(logits: jax.Array, jitter: float) -> Choice:
    """Two experts, each weighted among those that are nearly as good, and the second without the first."""
    open_to, experts, weights = logits, [], []
    for _ in range(2):
        best = open_to.max(axis=-1, keepdims=True)
        chosen = open_to.argmax(axis=-1, keepdims=True).astype(jnp.int32)
        is_worse = (best - logits) / jnp.maximum(jnp.abs(logits), best) > 2 * jitter
        shares = jax.nn.softmax(jnp.where(is_worse, -jnp.inf, open_to))
        experts.append(chosen)
        weights.append(jnp.take_along_axis(shares, chosen, axis=-1))
        open_to = jnp.where(jnp.arange(logits.shape[-1], dtype=jnp.int32) == chosen, -jnp.inf, open_to)
    return jnp.concatenate(experts, axis=-1), jnp.concatenate(weights, axis=-1)

"""Activations, and the gated one between the two halves of a feed-forward block (arXiv 2002.05202)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError, nearest
from jaxllm.models.layers.parameter import Merged, parameter
from jaxllm.models.mlp_plan import ClampedPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_fast": partial(jax.nn.gelu, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}
"""By the name that checkpoints use for them."""


LEARNED = "xielu"
"""The name of `LearnedActivation`, which MLPs without a gate may have."""


def find_activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """By its name. Raises `ModelError` for an unknown one."""
    if name not in ACTIVATIONS:
        hint = nearest(name, ACTIVATIONS)
        raise ModelError(f"unknown activation {name!r}{hint} (known: {', '.join(ACTIVATIONS)})")
    return ACTIVATIONS[name]


def read_activation(file: ConfigFile, key: str, default: str) -> str:
    """An activation's name in a configuration. Raises `ModelError` for an unknown one."""
    name = file.text(key, default)
    if name not in ACTIVATIONS:
        raise file.wrong(key, f"one of {', '.join(ACTIVATIONS)}{nearest(name, ACTIVATIONS)}")
    return name


def clamped(gate: jax.Array, up: jax.Array, plan: ClampedPlan) -> jax.Array:
    """See `ClampedPlan`."""
    gate, up = jnp.minimum(gate, plan.limit), jnp.clip(up, -plan.limit, plan.limit)
    return (up + plan.offset) * gate * jax.nn.sigmoid(plan.alpha * gate)


@dataclass(frozen=True)
class GatedActivation:
    """`activation(scale * gate) * up`, of the product with both weights `parts`, or what is `clamped`.

    Raises `ModelError` for an unknown name.
    """

    activation: str
    parts: Merged
    scale: float = 1.0
    sparsity: float = 0.0
    """See `MLPPlan`."""
    clamped: ClampedPlan | None = None

    def __post_init__(self) -> None:
        find_activation(self.activation)

    @property
    def is_silu(self) -> bool:
        """Whether it is silu of the first half of each row, times the second."""
        is_plain = self.scale == 1.0 and not self.sparsity and self.clamped is None
        return ACTIVATIONS[self.activation] is jax.nn.silu and self.parts.blocks == 1 and is_plain

    def __call__(self, gate_up: jax.Array) -> jax.Array:
        """Map [T, 2 I] to [T, I]."""
        gate, up = self.parts.split(gate_up)
        if self.clamped is not None:
            return clamped(gate, up, self.clamped)
        if self.sparsity:
            gate = _without_low(gate, self.sparsity)
        return ACTIVATIONS[self.activation](gate if self.scale == 1.0 else gate * self.scale) * up


def _without_low(gate: jax.Array, sparsity: float) -> jax.Array:
    """What gates [T, I] have above the number that so large a share of a normal distribution is below, or 0."""
    # Few models want it: starts of others are faster without the import.
    from statistics import NormalDist

    wide = gate.astype(jnp.float32)
    bound = wide.mean(axis=-1, keepdims=True) + wide.std(axis=-1, keepdims=True) * NormalDist().inv_cdf(sparsity)
    return jax.nn.relu(wide - bound).astype(gate.dtype)


class LearnedActivation(nnx.Module):
    """xIELU (arXiv 2411.13010): a parabola above zero and an exponential below it, each with a learned factor.

    With p = softplus(alpha_p) and n = 1/2 + softplus(alpha_n), p x^2 + x/2 where x > 0, else n (exp(x) - 1 - x) + x/2.
    """

    def __init__(self, dtype: jnp.dtype, options: ForwardOptions) -> None:
        whole = sharding(options.mesh, None)
        self.alpha_p, self.alpha_n = parameter((1,), dtype, whole), parameter((1,), dtype, whole)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [T, I] to [T, I]."""
        above, below = (jax.nn.softplus(alpha[...].astype(jnp.float32)) for alpha in (self.alpha_p, self.alpha_n))
        half = 0.5 * x
        # The exponential of a large number, which is not chosen, would be infinite.
        curve = (jnp.expm1(jnp.minimum(x, 0.0)) - x) * (0.5 + below).astype(x.dtype)
        return jnp.where(x > 0, above.astype(x.dtype) * x * x, curve) + half

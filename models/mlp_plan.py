"""The plan of feed-forward blocks, experts too: choices of a family, as `jaxllm.models.plan` has them for layers."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxllm.models.norm_plan import NormPlan


@dataclass(frozen=True, kw_only=True)
class ClampedPlan:
    """gpt-oss's gate: (up + offset) * gate * sigmoid(alpha * gate), gate up to `limit`, up within +-`limit`."""

    alpha: float
    limit: float
    offset: float = 1.0


@dataclass(frozen=True, kw_only=True)
class MLPPlan:
    """A feed-forward block: `down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))`.

    `size` is that between the products, the model's `intermediate_size` by default. The last product may have a bias
    when the others have none (`down_bias`). What the activation gets of a gate is multiplied by `gate_scale`. With
    `sparsity` about that share of the gates of a token is set to zero, those below a number of standard deviations from
    their mean, which is taken off the others (Gemma 3n). Without a gate, the activation may be a learned one (`xielu`).
    With a `norm`, what the last product takes is normalised. `clamped` is in place of the activation and its product.
    """

    activation: str = "silu"
    is_gated: bool = True
    clamped: ClampedPlan | None = None
    bias: bool = False
    down_bias: bool = False
    size: int | None = None
    gate_scale: float = 1.0
    sparsity: float = 0.0
    norm: NormPlan | None = None


@dataclass(frozen=True, kw_only=True)
class RouterPlan:
    """How a token's experts are chosen and weighted, from logits that a product gives, which may have a `bias`.

    The scores are the `softmax` or the `sigmoid` of all logits, or the root of their softplus (`root_softplus`); or the
    logits themselves, and the softmax of those chosen are the weights (`chosen_softmax`), or the sigmoid of each
    (`chosen_sigmoid`); or as in SparseMixer (arXiv 2409.12136), for two experts, with `jitter`.
    The highest scores are chosen, after adding a `correction` that the weights do not have. Among `groups` of experts
    only the best `top_groups` are looked at, by their best score or by the sum of the two best; others have the score
    `outside`. Weights are divided by their sum plus `epsilon`, if they are to be `normalised`, and multiplied by
    `scale`. Logits may be capped first: soft_cap * tanh(logits / soft_cap).
    """

    kind: Literal["softmax", "sigmoid", "root_softplus", "chosen_softmax", "chosen_sigmoid", "sparsemixer"] = "softmax"
    norm: NormPlan | None = None
    """Norm of the product's input, which is then multiplied by a weight for each element and hidden size ** -0.5."""
    bias: bool = False
    correction: bool = False
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["best", "best_two"] = "best"
    outside: float = -math.inf
    normalised: bool = False
    epsilon: float = 0.0
    scale: float = 1.0
    soft_cap: float | None = None
    expert_scale: bool = False
    """Whether weights are multiplied by a number of their expert."""
    jitter: float = 0.0
    by_token: bool = False
    """Whether a table by the token's ID says which experts are chosen, whatever the scores."""


EXPERT = "expert_"
"""How the names of experts' matrices begin: "expert_up", ..."""


@dataclass(frozen=True, kw_only=True)
class ExpertsPlan:
    """A mixture of experts: `count` MLPs of `size`; each token has the weighted sum of `per_token` of them.

    An MLP for all tokens may be `shared`: its output is added, times the sigmoid of a product with `shared_gate`.
    """

    count: int
    per_token: int
    size: int
    identities: int = 0
    """Experts after those, which give their input back (zero-computation experts, arXiv 2509.01322)."""
    activation: str = "silu"
    is_gated: bool = True
    clamped: ClampedPlan | None = None
    """In place of the activation."""
    bias: bool = False
    output_bias: bool = False
    """Whether a bias is added to the sum over a token's experts (Nomic Embed 2)."""
    router: RouterPlan = RouterPlan()
    scales_input: bool = False
    """Whether an expert's weight multiplies what goes into it, not what comes out (Llama 4)."""
    shared: MLPPlan | None = None
    shared_gate: bool = False
    scale: float = 1.0
    """Factor on the sum of all."""
    norm: NormPlan | None = None
    """Norms of the experts and of the shared expert, one before and after each; the router has its own (Gemma 4)."""

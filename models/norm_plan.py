"""The plan of norms: choices of a family, as `jaxllm.models.plan` has them for layers."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class NormPlan:
    """A norm: by root mean square, or by mean and variance (`layer`).

    What is normalised is multiplied by weight + `offset` (Gemma and Nemotron store weights around zero), unless there
    is no weight, then a bias is added, if there is one. With a `gate_rank` the result is multiplied by a gate that is
    made of it: sigmoid(up(silu(down(x)))), with so many elements between the two products (A.X-K2).
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    offset: float = 0.0
    weight: bool = True
    bias: bool = False
    gate_rank: int | None = None

"""The plan of matrix memories: choices of a family, as `jaxllm.models.plan` has them for layers."""

from dataclasses import dataclass

from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import RecurrentPlan, StateArray


@dataclass(frozen=True, kw_only=True)
class MatrixMemoryPlan(RecurrentPlan):
    """An mLSTM (xLSTM, arXiv 2405.04517): linear attention whose exponential gates take tokens in and forget others.

    Both gates are products with biases, capped: cap * tanh(gate / cap). What a head reads is divided by the weights it
    read, plus `eps`, then normalised by head, then multiplied by the sigmoid of one more product.
    """

    heads: int
    key_size: int
    value_size: int
    gate_cap: float = 15.0
    eps: float = 1e-6
    norm: NormPlan = NormPlan(kind="layer")

    @property
    def keys(self) -> int:
        """Elements of all keys of a token."""
        return self.heads * self.key_size

    @property
    def values(self) -> int:
        """Elements of all values of a token."""
        return self.heads * self.value_size

    @property
    def states(self) -> tuple[StateArray, ...]:
        """What heads hold: values by key, weights by key, and the largest exponent, once for every key."""
        shape = (self.heads, self.key_size, self.value_size + 2)
        return (StateArray(shape=shape, axes=("heads", None, None)),)

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """Key, value, and both gates."""
        gate = StateArray(shape=(self.heads,), axes=("heads",))
        return (
            StateArray(shape=(self.heads, self.key_size), axes=("heads", None), dtype=None),
            StateArray(shape=(self.heads, self.value_size), axes=("heads", None), dtype=None),
            gate,
            gate,
        )

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the heads."""
        return (self.heads,)

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the products before and after the recurrence."""
        return hidden_size * (2 * self.keys + 3 * self.values + 2 * self.heads)

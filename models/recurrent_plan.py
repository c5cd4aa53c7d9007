"""The plan of recurrent blocks: choices of a family, as `jaxllm.models.plan` has them for layers."""

from dataclasses import dataclass
from typing import Literal

from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import RecurrentPlan, StateArray


@dataclass(frozen=True, kw_only=True)
class ShortConvolutionPlan(RecurrentPlan):
    """LFM2's gated convolution: `output(c * convolution(b * x))`, where one product gives b, c and x.

    Each of `channels` is convolved for itself over the last `width` tokens.
    """

    channels: int
    width: int = 3
    bias: bool = False

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The inputs of the convolution at the last `width` - 1 tokens, oldest first."""
        return (StateArray(shape=(self.width - 1, self.channels), axes=(None, "mlp"), dtype=None),)

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The input of the convolution."""
        return (StateArray(shape=(self.channels,), axes=("mlp",), dtype=None),)

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the channels."""
        return (self.channels,)

    @property
    def orders_by_device(self) -> bool:
        """No: channels are in their order."""
        return False

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the two products."""
        return 4 * hidden_size * self.channels


@dataclass(frozen=True, kw_only=True)
class GatedDeltaPlan(RecurrentPlan):
    """A gated delta net (arXiv 2412.06464), as Qwen3-Next has it.

    Queries, keys and values pass a causal convolution of `width` tokens and the activation; value heads share the
    `key_heads`. What comes out is normalised by head, then gated by an activation of one more product. Rates are
    sigmoids times `rate_scale`: with 2, what a state holds for a key may change its sign (arXiv 2411.12537).
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    width: int = 4
    activation: str = "silu"
    gate_activation: Literal["silu", "sigmoid"] = "silu"
    norm: NormPlan = NormPlan()
    rate_scale: float = 1.0

    @property
    def keys(self) -> int:
        """Elements of all keys of a token."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """Elements of all values of a token."""
        return self.value_heads * self.value_size

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The last inputs of the convolution, and what each head holds: its values by key."""
        return (
            StateArray(shape=(self.width - 1, 2 * self.keys + self.values), axes=(None, "heads"), dtype=None),
            StateArray(shape=(self.value_heads, self.key_size, self.value_size), axes=("heads", None, None)),
        )

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The input of the convolution; key, value, decay and rate."""
        return (
            StateArray(shape=(2 * self.keys + self.values,), axes=("heads",), dtype=None),
            StateArray(shape=(self.key_heads, self.key_size), axes=("heads", None)),
            StateArray(shape=(self.value_heads, self.value_size), axes=("heads", None), dtype=None),
            StateArray(shape=(self.value_heads,), axes=("heads",)),
            StateArray(shape=(self.value_heads,), axes=("heads",)),
        )

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the heads."""
        return self.key_heads, self.value_heads

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the products before and after the recurrence."""
        return hidden_size * (2 * self.keys + 3 * self.values + 2 * self.value_heads)


@dataclass(frozen=True, kw_only=True)
class ChannelDeltaPlan(RecurrentPlan):
    """Kimi's delta attention (arXiv 2510.26692): a gated delta net that forgets each element of a key at its own rate.

    Decays and the gate of what comes out are products, perhaps of `rank`; the gate is a sigmoid. Queries, keys and
    values of `heads` pass a causal convolution of `width` tokens and the activation. What comes out is normalised by
    head. With a `lowest_decay`, logarithms of decays are sigmoids times that, else they have no bound.
    """

    heads: int
    head_size: int
    rank: int | None = None
    width: int = 4
    activation: str = "silu"
    norm: NormPlan = NormPlan()
    lowest_decay: float | None = None

    @property
    def inner(self) -> int:
        """Elements of all heads of a token."""
        return self.heads * self.head_size

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The last inputs of the convolution, and what each head holds: its values by key."""
        return (
            StateArray(shape=(self.width - 1, 3 * self.inner), axes=(None, "heads"), dtype=None),
            StateArray(shape=(self.heads, self.head_size, self.head_size), axes=("heads", None, None)),
        )

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The input of the convolution; key, value, decay and rate."""
        by_head = StateArray(shape=(self.heads, self.head_size), axes=("heads", None))
        return (
            StateArray(shape=(3 * self.inner,), axes=("heads",), dtype=None),
            by_head,
            StateArray(shape=(self.heads, self.head_size), axes=("heads", None), dtype=None),
            by_head,
            StateArray(shape=(self.heads,), axes=("heads",)),
        )

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the heads."""
        return (self.heads,)

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the products before and after the recurrence."""
        rank = self.rank or hidden_size
        down = 2 * hidden_size * self.rank if self.rank else 0
        return hidden_size * (4 * self.inner + self.heads) + down + 2 * rank * self.inner


@dataclass(frozen=True, kw_only=True)
class StateSpacePlan(RecurrentPlan):
    """A Mamba-2 mixer (arXiv 2405.21060).

    What is written, x, and how it is written and read, B and C, pass a causal convolution of `width` tokens and the
    activation; heads share B and C in `groups`. Step sizes are softplus of a product, within `limits`. What comes out
    is gated by the SiLU of one more product, then normalised in the groups; or `norm_is_first`; or there is no `norm`.
    The products that give the gate, x, B, C and step sizes may have `multipliers`, in this order.
    """

    heads: int
    head_size: int
    state_size: int
    groups: int = 1
    width: int = 4
    activation: str = "silu"
    bias: bool = False
    convolution_bias: bool = True
    limits: tuple[float, float] = (0.0, float("inf"))
    norm: NormPlan | None = NormPlan()
    norm_is_first: bool = False
    multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)

    @property
    def inner(self) -> int:
        """Elements of all heads of a token."""
        return self.heads * self.head_size

    @property
    def shared(self) -> int:
        """Elements of B, or C, of a token."""
        return self.groups * self.state_size

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The last inputs of the convolution, x and then B and C, which devices do not share; and what heads hold."""
        return (
            StateArray(shape=(self.width - 1, self.inner), axes=(None, "heads"), dtype=None),
            StateArray(shape=(self.width - 1, 2 * self.shared), axes=(None, None), dtype=None),
            StateArray(shape=(self.heads, self.head_size, self.state_size), axes=("heads", None, None)),
        )

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The inputs of the convolution; what is written, decays, and B."""
        # A device has the groups of its heads: all have the same one, or none has another's.
        of_groups = None if self.groups == 1 else "heads"
        return (
            StateArray(shape=(self.inner,), axes=("heads",), dtype=None),
            StateArray(shape=(2 * self.shared,), axes=(None,), dtype=None),
            StateArray(shape=(self.heads, self.head_size), axes=("heads", None)),
            StateArray(shape=(self.heads,), axes=("heads",)),
            StateArray(shape=(self.groups, self.state_size), axes=(of_groups, None), dtype=None),
        )

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the heads, and all have the same groups or none has another's."""
        return (self.heads,) if self.groups == 1 else (self.heads, self.groups)

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the products before and after the recurrence."""
        return hidden_size * (3 * self.inner + 2 * self.shared + self.heads)


@dataclass(frozen=True, kw_only=True)
class SelectiveScanPlan(RecurrentPlan):
    """A Mamba mixer (arXiv 2312.00752).

    `channels` pass a causal convolution of `width` tokens and the activation. Step sizes, from a product of `rank`, and
    how a state is written and read, B and C, follow from what comes out, each perhaps normalised (`norm`); in each of
    `heads`, which have their parts of the channels, from its own by a product of its own. The result is gated by the
    SiLU of one more product.
    """

    channels: int
    state_size: int
    rank: int
    heads: int = 1
    width: int = 4
    activation: str = "silu"
    bias: bool = False
    convolution_bias: bool = True
    norm: NormPlan | None = None

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The last inputs of the convolution, and what each channel holds."""
        return (
            StateArray(shape=(self.width - 1, self.channels), axes=(None, "heads"), dtype=None),
            StateArray(shape=(self.state_size, self.channels), axes=(None, "heads")),
        )

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The input of the convolution; step sizes, what is written, and B."""
        return (
            StateArray(shape=(self.channels,), axes=("heads",), dtype=None),
            StateArray(shape=(self.channels,), axes=("heads",)),
            StateArray(shape=(self.channels,), axes=("heads",)),
            self._write,
        )

    @property
    def _write(self) -> StateArray:
        """B of a token."""
        if self.heads == 1:
            return StateArray(shape=(self.state_size,), axes=(None,))
        return StateArray(shape=(self.heads, self.state_size), axes=("heads", None))

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the channels, or the heads."""
        return (self.channels if self.heads == 1 else self.heads,)

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the products before and after the recurrence."""
        return self.channels * (3 * hidden_size + 2 * self.rank + 2 * self.state_size)


@dataclass(frozen=True, kw_only=True)
class LightningPlan(RecurrentPlan):
    """Lightning attention (arXiv 2401.04658): linear attention whose heads forget at a rate of their own.

    Queries, keys and values pass the activation. What comes out is normalised over all heads, then multiplied by the
    sigmoid of one more product. Rates are weights.
    """

    heads: int
    head_size: int
    activation: str = "silu"
    norm: NormPlan = NormPlan()

    @property
    def inner(self) -> int:
        """Elements of all heads of a token."""
        return self.heads * self.head_size

    @property
    def states(self) -> tuple[StateArray, ...]:
        """What heads hold: values by key."""
        return (StateArray(shape=(self.heads, self.head_size, self.head_size), axes=("heads", None, None)),)

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """Values, decays and keys."""
        return (
            StateArray(shape=(self.heads, self.head_size), axes=("heads", None)),
            StateArray(shape=(self.heads,), axes=("heads",)),
            StateArray(shape=(self.heads, self.head_size), axes=("heads", None), dtype=None),
        )

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the heads."""
        return (self.heads,)

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the products before and after the recurrence."""
        return 5 * hidden_size * self.inner

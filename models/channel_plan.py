"""The plan of recurrent blocks that keep a few numbers of each channel: choices of a family, as in `recurrent_plan`."""

from dataclasses import dataclass

from jaxllm.models.plan import RecurrentPlan, StateArray


@dataclass(frozen=True, kw_only=True)
class RealGatedPlan(RecurrentPlan):
    """Griffin's recurrent block (arXiv 2402.19427), a real-gated linear recurrent unit with a gate.

    `channels` pass a causal convolution of `width` tokens. What a channel keeps, and what it takes in, follow from
    products of `blocks` of channels, each by a matrix of its own. The result is multiplied by the activation of one
    more product.
    """

    channels: int
    blocks: int
    width: int = 4
    activation: str = "gelu_pytorch_tanh"

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The last inputs of the convolution, and what each channel holds."""
        return (
            StateArray(shape=(self.width - 1, self.channels), axes=(None, "heads"), dtype=None),
            StateArray(shape=(self.channels,), axes=("heads",)),
        )

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The input of the convolution; decays, and what is taken in."""
        of_channels = StateArray(shape=(self.channels,), axes=("heads",))
        return (StateArray(shape=(self.channels,), axes=("heads",), dtype=None), of_channels, of_channels)

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the blocks."""
        return (self.blocks,)

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the products before and after the recurrence, and of both gates."""
        return self.channels * (3 * hidden_size + 2 * (self.channels // self.blocks))


@dataclass(frozen=True, kw_only=True)
class WeightedMeanPlan(RecurrentPlan):
    """RWKV's time mixing (RWKV-4, arXiv 2305.13048): a mean of values that are weighted by exponentials of keys.

    Weights decay at a rate of each of `channels`; the token itself has a bonus. The result is multiplied by the sigmoid
    of one more product. All products take mixtures of the token and the one before it.
    """

    channels: int
    hidden_size: int

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The last token; and the weighted sum of values of each channel, that of weights, and the largest exponent."""
        return (
            StateArray(shape=(1, self.hidden_size), axes=(None, None), dtype=None),
            StateArray(shape=(3, self.channels), axes=(None, "heads")),
        )

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The token; keys and values."""
        of_channels = StateArray(shape=(self.channels,), axes=("heads",))
        return (StateArray(shape=(self.hidden_size,), axes=(None,), dtype=None), of_channels, of_channels)

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the channels."""
        return (self.channels,)

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the products before and after the recurrence."""
        return 4 * hidden_size * self.channels


@dataclass(frozen=True, kw_only=True)
class ShiftedMLPPlan(RecurrentPlan):
    """RWKV's channel mixing: an MLP of `size` times the sigmoid of one more product.

    Both take mixtures of the token and the one before it.
    """

    size: int
    hidden_size: int
    activation: str = "relu2"

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The last token."""
        return (StateArray(shape=(1, self.hidden_size), axes=(None, None), dtype=None),)

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The token."""
        return (StateArray(shape=(self.hidden_size,), axes=(None,), dtype=None),)

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Devices share the MLP."""
        return (self.size,)

    def num_weights(self, hidden_size: int) -> int:
        """Weights of the three products."""
        return hidden_size * (2 * self.size + hidden_size)

"""The plan of n-grams: what layers look up by the last tokens together."""

from dataclasses import dataclass

from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import RecurrentPlan, StateArray


@dataclass(frozen=True, kw_only=True)
class GramsPlan:
    """The term that a layer adds to its streams before its blocks, from embeddings of n-grams (Qwen4-Exp).

    A token with the one before it, with the two before it, and so on up to so many as there are `multipliers`, is
    looked up in tables: a bit-wise sum (exclusive or) of their IDs, each times its multiplier, modulo each of `rows`;
    every length of n-grams has equally many of these. Nothing is seen beyond a `separator`, which stands there in place
    of tokens. All tables are one, of rows of `size` numbers, which ends in rows that are never read; checkpoints have
    it in parts of `shards` rows. What is found makes a value for all streams and a key for each: a value counts as much
    as the key fits the stream, and passes a causal convolution of `width` taps that are as far apart as n-grams are
    long. Streams are `count` of `hidden` elements.
    """

    multipliers: tuple[int, ...]
    rows: tuple[int, ...]
    shards: tuple[int, ...]
    size: int
    separator: int
    width: int
    count: int
    hidden: int
    norm: NormPlan

    @property
    def before(self) -> int:
        """Tokens before a token that are looked up with it."""
        return len(self.multipliers) - 1

    @property
    def found(self) -> int:
        """Numbers that are found for a token."""
        return len(self.rows) * self.size

    @property
    def states(self) -> tuple[StateArray, ...]:
        """The last tokens, plus 1, once for each place before a token; and the last inputs of the convolution."""
        streams, reach = self.count * self.hidden, (self.width - 1) * len(self.multipliers)
        return (
            StateArray(shape=(self.before, self.before), axes=(None, None)),
            StateArray(shape=(reach, streams), axes=(None, None), dtype=None),
        )

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """The same of one token."""
        return (
            StateArray(shape=(self.before,), axes=(None,)),
            StateArray(shape=(self.count * self.hidden,), axes=(None,), dtype=None),
        )

    @property
    def num_weights(self) -> int:
        """Weights of the two products of what is found."""
        return self.found * self.hidden * (self.count + 1)


@dataclass(frozen=True, kw_only=True)
class WithGramsPlan(RecurrentPlan):
    """A recurrent block in a layer that has n-grams before it: the layer keeps the states of both, the block's first.

    So what n-grams need of earlier tokens is kept, copied and taken back as other states are.
    """

    block: RecurrentPlan
    grams: GramsPlan

    @property
    def states(self) -> tuple[StateArray, ...]:
        """Those of both."""
        return (*self.block.states, *self.grams.states)

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """Those of both."""
        return (*self.block.draft_inputs, *self.grams.draft_inputs)

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Those of the block, and the rows of the table: devices share nothing else of n-grams."""
        return (*self.block.split_sizes, sum(self.grams.shards))

    @property
    def orders_by_device(self) -> bool:
        """See `RecurrentPlan`."""
        return self.block.orders_by_device

    @property
    def reads_tokens(self) -> bool:
        """Yes: n-grams are made of them."""
        return True

    def num_weights(self, hidden_size: int) -> int:
        """Those of both."""
        return self.block.num_weights(hidden_size) + self.grams.num_weights

"""The plans of a decoder's layers: choices of a family that shared layers follow without asking its name."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxllm.models.attention_plan import AnyAttentionPlan, AttentionPlan
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan
from jaxllm.models.norm_plan import NormPlan

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.linear.weight_type import WeightType


@dataclass(frozen=True, kw_only=True)
class StateArray:
    """An array that a recurrent layer keeps of each request, of one size however long the request is.

    `axes` are the logical names of its axes, see `jaxllm.models.sharding`. A `dtype` of None is that of activations.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    dtype: str | None = "float32"


@dataclass(frozen=True, kw_only=True)
class RecurrentPlan:
    """A block that keeps a state of each request, in place of keys and values of its tokens. Kinds derive from it."""

    @property
    def states(self) -> tuple[StateArray, ...]:
        """Its state; zeros where a request begins."""
        raise NotImplementedError

    @property
    def draft_inputs(self) -> tuple[StateArray, ...]:
        """What is kept of a token that may turn out to be wrong, from which its part of the state can be made."""
        raise NotImplementedError

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """Sizes that devices share among them: their number must divide each of these."""
        raise NotImplementedError

    @property
    def orders_by_device(self) -> bool:
        """Whether the order of what `states` holds may depend on the number of devices."""
        return True

    @property
    def reads_tokens(self) -> bool:
        """Whether the layer looks up the IDs of tokens."""
        return False

    def num_weights(self, hidden_size: int) -> int:
        """Numbers in the matrices that a token is multiplied with."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TokenInputPlan:
    """The term that a layer adds after its blocks, from an embedding of the token that is its own (Gemma 3n, Gemma 4).

    `norm(projection(activation(gate(x)) * embedding))`, with an embedding of `size` elements.
    """

    size: int
    activation: str
    norm: NormPlan


@dataclass(frozen=True, kw_only=True)
class AltUpPlan:
    """Alternating updates (arXiv 2301.13310) with learned augmented residuals (arXiv 2411.07501), as in Gemma 3n.

    The residual is `count` streams. The layer computes with number `active`, predicted from all of them, and corrects
    all by what comes out. What goes into attention is added to its result, with two products of `rank`. The token's
    input is made of the corrected active stream, perhaps scaled by a weight (`scales`), and added to all but the first.
    """

    count: int
    active: int
    rank: int
    norm: NormPlan
    scales: bool


@dataclass(frozen=True, kw_only=True)
class HyperConnectionsPlan:
    """Hyper-connections (arXiv 2409.19606), constrained to manifolds (arXiv 2512.24880), as in DeepSeek V4.

    The residual is `count` streams. A block gets their sum, each times a weight of the token, and each stream gets what
    comes out, times another. Weights are sigmoids of a product with all streams, normalised together with `norm_eps`:
    those of the block's input plus `eps`, those of its output times `magnitude`, plus `output_eps`. Each stream then is
    a mean of all, whose weights are a doubly stochastic matrix, from so many `iterations` (Sinkhorn and Knopp); with 0
    it is what it was, as in HY 4. After the layers streams are joined by such weights, too, if `joins_by_weight`, else
    by their mean.
    """

    count: int
    eps: float = 1e-6
    norm_eps: float = 1e-6
    iterations: int = 20
    magnitude: float = 2.0
    output_eps: float = 0.0
    joins_by_weight: bool = True


@dataclass(frozen=True, kw_only=True)
class GatedStreamsPlan:
    """Streams of the residual whose elements have gates of their own, products of low rank (Qwen4-Exp).

    The residual is `count` streams, each normalised. A block gets their mean, each element times a gate:
    sigmoid(up(silu(down(all) / count))), with `rank` elements between the two products. What comes out is added to each
    stream, times 2 * sigmoid of one more product / count. After the layers streams are joined by such gates, too.
    """

    count: int
    rank: int
    norm: NormPlan


@dataclass(frozen=True, kw_only=True)
class NormedResidualPlan:
    """A block whose input stays as the residual after the norm before it, not before: `keep * normed + add * block`."""

    keep: float = 1.0
    add: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """One decoder layer; layers with equal plans are alike. Sizes are the model's.

    A block is attention or MLP, which may be a mixture of experts. Its input is normalised before it, its output after
    it, scaled by `residual_scale`, and added to the residual; with `normalises_sum`, what is normalised after it is
    the sum, as in arXiv 1706.03762, and with a `NormedResidualPlan` the residual is, too. Blocks follow one another, or
    both take the layer's input (`is_parallel`); then without an `mlp_norm` they share what the `attention_norm` gives.

    A `residual_mlp` comes between the two, with its norm, as a block of its own (Arctic). Without a norm it takes what
    the MLP gets.

    With a `token_input`, that is added last.

    With `cross` there is a block more after attention, which sees the keys and values of the request's sound, see
    `SoundPlan`; `cross_norm` is before it.

    A layer with a `recurrence` has that in place of attention, and its `attention` means nothing; one without
    an MLP (`has_mlp`) has nothing after it.
    """

    attention: AnyAttentionPlan = AttentionPlan()
    recurrence: RecurrentPlan | None = None
    cross: AttentionPlan | None = None
    mlp: MLPPlan | ExpertsPlan = MLPPlan()
    has_mlp: bool = True
    attention_norm: NormPlan | None = NormPlan()
    attention_output_norm: NormPlan | None = None
    cross_norm: NormPlan | None = None
    mlp_norm: NormPlan | None = NormPlan()
    mlp_output_norm: NormPlan | None = None
    residual_mlp: MLPPlan | None = None
    residual_norm: NormPlan | None = None
    is_parallel: bool = False
    normalises_sum: bool = False
    residual_scale: float = 1.0
    attention_residual: NormedResidualPlan | None = None
    mlp_residual: NormedResidualPlan | None = None
    token_input: TokenInputPlan | None = None
    output_scale: bool = False
    """Whether what the layer gives is multiplied by a number."""
    shared_block: int | None = None
    """Number of the block, of those that layers have in common, which is in place of attention and MLP (Zamba 2)."""
    adds_shared: bool = False
    """Whether the layer's input is added to by such a block, which is the layer before it."""
    is_late: bool = False
    """Whether the next layer adds what the MLP gives, after its own blocks (shortcut experts, arXiv 2404.05019)."""
    adds_late: bool = False
    """Whether the layer adds what the MLP of the one before it gives."""
    streams: AltUpPlan | HyperConnectionsPlan | GatedStreamsPlan | None = None
    """How the residual is several streams, in all layers of a model or in none."""
    adds_images: bool = False
    """Whether a part of the rows of images is added to what the layer gives (DeepStack, arXiv 2406.04334)."""
    weight_types: "tuple[tuple[str, WeightType], ...]" = ()
    """Types of quantized matrices, by the names of their modules in the layer ("attention.query", "mlp.expert_up")."""

    def with_window(self, window: int) -> "LayerPlan":
        """A copy with another window."""
        return self if self.attention.window == window else self.attending(window=window)

    def attending(self, **changes: object) -> "LayerPlan":
        """A copy with other values of its attention."""
        return replace(self, attention=self.attention.but(**changes))


@dataclass(frozen=True, kw_only=True)
class TokenInputsPlan:
    """Embeddings of tokens for each layer, of `size` elements (Gemma 3n, Gemma 4), see `TokenInputPlan`.

    Rows of a table for `vocab_size` tokens, others have that of token 0, plus the `norm` of a product with what the
    first layer gets.
    """

    size: int
    vocab_size: int
    norm: NormPlan


@dataclass(frozen=True, kw_only=True)
class EmbeddingPlan:
    """Rows of the table times `scale`, rounded to their type; plus learned positions; then a norm.

    There are `positions` of them, 0 for none; position p takes row p + `position_offset`. With `sinusoids` positions
    are not learned: their sines and then their cosines, each of half the hidden size, are added, where pair j turns by
    10000 ** (-j / sinusoids). With `token_types` the first row of a table with so many is added. Rows of another `size`
    than the hidden one are projected to it, and what the layers give back to theirs before the output layer, or a
    transform does that; with `projects_sum` all that is added has that size, and its norm is projected, with a bias.
    Layers may have embeddings of their own (`each_layer`).

    What a request gives in place of rows is `scaled` already where the scale belongs to the table: where embeddings
    are looked up with `transformers`, they come out of its embedding layer so.
    """

    size: int | None = None
    projects_sum: bool = False
    scale: float = 1.0
    scaled: bool = False
    positions: int = 0
    position_offset: int = 0
    sinusoids: float | None = None
    token_types: int = 0
    norm: NormPlan | None = None
    each_layer: TokenInputsPlan | None = None


@dataclass(frozen=True, kw_only=True)
class OutputTransformPlan:
    """What hidden states pass before the output layer: a product, an activation and a norm, as in BERT.

    The product gives `size` elements, by default as many as embeddings have.
    """

    activation: str
    norm: NormPlan
    bias: bool = True
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class OutputPlan:
    """Logits times `scale`, then soft_cap * tanh(logits / soft_cap); `bias` is one of the output layer.

    With `tokens` the output layer has only so many rows: later tokens are read and never generated.
    """

    tokens: int | None = None
    scale: float = 1.0
    soft_cap: float | None = None
    bias: bool = False
    transform: OutputTransformPlan | None = None

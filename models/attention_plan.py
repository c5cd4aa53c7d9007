"""The plan of attention: choices of a family, as `jaxllm.models.plan` has them for layers."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from jaxllm.models.norm_plan import NormPlan

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding and how it is stretched beyond the trained length.

    `trained_length` is the number of positions the unscaled embedding was trained on. The fields below `factor` belong
    to one kind each: the frequency factors to llama3, `alpha` to dynamic, `short_factors` and `long_factors` (one for
    each pair) to longrope, `part` to proportional, the rest to yarn. `attention_factor` multiplies cosine and sine, of
    yarn and longrope. Proportional: all pairs have the frequencies of a whole head, but only the first `part` of them
    is rotated (Gemma 4).

    Heads have `head_size` elements, where that is not the model's. Only the first `rotary_size` are rotated, or all. In
    a checkpoint, element i pairs with the one half of them further on, or, `interleaved`, with its neighbour; in memory
    a pair is always half a head apart. Where it `learns` frequencies, each is multiplied by the exponential of a
    parameter (LeRoPE, in Mistral Large 4).

    With `sections`, positions have three parts: time, height and width. So many pairs turn by each: the first ones by
    time, and so on (arXiv 2409.12191), or, with `mixes_sections`, every third from the second on by height, every third
    from the third on by width, and the others by time.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    trained_length: int = 2048
    head_size: int | None = None
    rotary_size: int | None = None
    interleaved: bool = False
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    alpha: float | None = None
    part: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    sections: tuple[int, ...] = ()
    mixes_sections: bool = False
    learns: bool = False


@dataclass(frozen=True, kw_only=True)
class QueryScale:
    """Queries grow with their position p: times 1 + beta * log(1 + floor((p + offset) / length)).

    As in Ministral 3 and Mistral Small 4, and with an offset of 1 in Llama 4.
    """

    beta: float
    length: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class DifferencePlan:
    """The difference of two attentions (arXiv 2410.05258), the second times a learned factor that begins as `initial`.

    Keys have half as many elements as heads: values of the first half of KV heads, and of the second, lie side by side
    in heads of both. What a pair of query heads gives is normalised with `eps`, then multiplied by 1 - `initial`.
    """

    initial: float
    eps: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class HeadExpertsPlan:
    """Experts in place of heads (mixture of attention heads, arXiv 2210.05144), as JetMoe has them.

    Of `count` experts each token has `per_token`, weighted by the softmax of their logits: an expert has a query head
    for each KV head, and its own last product. A bias is added to their sum.
    """

    count: int
    per_token: int


@dataclass(frozen=True, kw_only=True)
class BlockIndexPlan:
    """What chooses the keys that each KV head of a token sees, in blocks of positions (MiniMax M3).

    An index head has `size` elements, rotated as those of attention, at most as many as these; there is one for each KV
    head, and one index key for all. Queries and the key are normalised. A head sees the `top` blocks of `block` keys
    with the best scores, the `local` last ones among them.
    """

    size: int
    block: int
    top: int
    local: int
    norm: NormPlan

    @property
    def most(self) -> int:
        """Keys that a token sees at most."""
        return self.top * self.block


@dataclass(frozen=True, kw_only=True)
class GroupIndexPlan:
    """What chooses the keys that a token sees, in groups of `block` tokens, for all KV heads together (Qwen4-Exp).

    An index head has `size` elements, as `BlockIndexPlan` says; queries of all `heads` are normalised and rotated. The
    key of a group is the normalised mean of its tokens', rotated as at its first position. A token sees the `top`
    complete groups with the best sums of positive scores, and those before it in an incomplete one.
    """

    heads: int
    size: int
    block: int
    top: int
    norm: NormPlan

    @property
    def most(self) -> int:
        """Keys that a token sees at most."""
        return self.top * self.block + self.block - 1


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """Grouped-query attention.

    A token sees those before it, or, unless `is_causal`, all of its text. `window` is that of `AttentionOptions`, 0 for
    none; without `is_causal` it is that of `segment_attention`. With `is_chunked` it is the size of chunks: a token at
    position p sees the keys from the last multiple of it on, up to p. Without `rope` a layer does not see positions.
    `scale` is H ** -0.5 by default. Queries, keys and values are clipped to +-`clip`. `norm` is that of query and key
    heads: over each head with one weight for all of them (`head`) or one for each (`heads`; with `norm_is_split` these
    are as many tensors in checkpoints), or over all heads together (`all`), before the rotary embedding or after it.
    """

    is_causal: bool = True
    window: int = 0
    is_chunked: bool = False
    rope: RopeConfig | None = RopeConfig()
    scale: float | None = None
    soft_cap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    clip: float | None = None
    norm: NormPlan | None = None
    norm_over: Literal["head", "heads", "all"] = "head"
    norm_is_split: bool = False
    norm_is_last: bool = False
    query_scale: QueryScale | None = None
    sinks: bool = False
    output_gate: Literal["elements", "heads"] | None = None
    """What attention gives is multiplied by an activation of one more product: each element, or each head, by one."""
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"
    alibi: float | None = None
    """Largest exponent of the slopes (8 as in arXiv 2108.12409), or None for no biases by distance."""
    alibi_scale: float = 1.0
    num_heads: int | None = None
    """Query heads, where they are not as many as the model's."""
    num_kv_heads: int | None = None
    """KV heads, where they are not as many as the model's."""
    head_size: int | None = None
    """Size of heads, where it is not the model's."""
    key_size: int | None = None
    """Elements of a query and of a key, where heads have more: the others are zeros, in the cache, too."""
    value_size: int | None = None
    """Elements of a value, likewise."""
    value_scale: float = 1.0
    index: BlockIndexPlan | GroupIndexPlan | None = None
    """What chooses the keys that are seen; without it, all are."""
    experts: HeadExpertsPlan | None = None
    """Experts that give queries and take what attention gives; heads are those of a token's experts."""
    difference: "DifferencePlan | None" = None
    """How the difference of two attentions is taken, which half of the heads give each."""
    output_norm: NormPlan | None = None
    """Norm of what all heads give, before the last product."""
    value_norm: NormPlan | None = None
    """Norm of value heads, over each head with one weight for all of them."""
    values_are_keys: bool = False
    """Whether values are what the product for keys gives, before its norm and the rotary embedding."""
    input_size: int | None = None
    """Size of what the layer gets, where it is not the hidden size."""
    source: int | None = None
    """Number of the layer whose keys and values in the cache this one reads; it has none, then."""
    sees_spans: bool = False
    """Whether tokens see later ones of their span (`RaggedBatch.visible_until`), within the window."""

    @property
    def chunk(self) -> int:
        """Size of the chunks that attention stays within; 0 if there are none."""
        return self.window if self.is_chunked else 0

    @property
    def is_ordinary(self) -> bool:
        """Whether what attention takes is one product of the layer's input."""
        return self.experts is None and self.index is None

    def but(self, **changes: object) -> "AttentionPlan":
        """A copy with other values."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class KeyIndexPlan:
    """What chooses the keys that a token sees, where they are more than `top` (DeepSeek sparse attention).

    An index head has `size` elements, the first of them, or, with `rotates_last`, the last ones rotated as those of
    attention; an index key is for all `heads`, and normalised. In checkpoints a rotated element pairs with its
    neighbour if `interleaved`. Queries are products of the latents of attention's queries, or, with an `input_norm`, of
    the layer's input after that; with `grows` they are scaled as `LatentAttentionPlan.grows` says.
    """

    heads: int
    size: int
    top: int
    interleaved: bool = False
    rotates_last: bool = False
    norm: NormPlan = NormPlan(kind="layer", bias=True)
    input_norm: NormPlan | None = None
    grows: bool = False
    pool: int = 1
    """Tokens that are chosen together, if more than 1, `top` tokens in all; those of an unfinished group are seen.

    The key of a group is the mean of its tokens' keys, each element weighted by the softmax of another product's and of
    a bias by the place in the group (GLM-5 next).
    """

    @property
    def cached_size(self) -> int:
        """Numbers that the cache has of a token: its key, and what that is weighted by in a group."""
        return self.size if self.pool == 1 else 2 * self.size

    @property
    def most(self) -> int:
        """Keys that a token sees at most."""
        return self.top + self.pool - 1


@dataclass(frozen=True, kw_only=True)
class LatentAttentionPlan:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), whose cache has one latent for all heads.

    Keys and values of all heads are products of a token's latent, of size `rank`, but for `rope_size` elements that the
    rotary embedding turns, which all heads share. A head's query has `plain_size` elements and `rope_size` more, its
    value `value_size`. Queries are products of the layer's input, or of a latent of their own, of size `query_rank`.
    `norm` is that of latents. `scale` is (plain_size + rope_size) ** -0.5 by default. With `bias`, the products that
    make latents and the last one have biases. With an `index`, which needs a `query_rank` or a norm of its own, tokens
    see chosen keys; with `shares_choice` they are those that the last layer before it with an index of its own has
    chosen. Without one they see the last `window` keys (0: all). `rope_norm` is that of the rotated part of keys,
    before it is rotated. With `grows` a head's queries at position p are multiplied by scale * log(p + 1) + bias, which
    are parameters of each head.
    """

    rank: int
    plain_size: int
    rope_size: int
    value_size: int
    query_rank: int | None = None
    rope: RopeConfig | None = RopeConfig()
    scale: float | None = None
    norm: NormPlan = NormPlan()
    latent_scale: float = 1.0
    """Factor on normalised latents."""
    rope_norm: NormPlan | None = None
    bias: bool = False
    query_scale: QueryScale | None = None
    grows: bool = False
    output_gate: Literal["elements", "heads"] | None = None
    """What values give is multiplied by the sigmoid of one more product: each element, or each head, by one."""
    takes_both: bool = False
    """Whether queries are products of their latents after the norm and before it, side by side, and gates as well."""
    sinks: bool = False
    index: KeyIndexPlan | None = None
    shares_choice: bool = False
    window: int = 0
    num_heads: int | None = None
    """Heads, where they are not as many as the model's."""
    source: int | None = None
    """Number of the layer whose latents in the cache this one reads; it has none, then."""

    is_causal: ClassVar[bool] = True
    chunk: ClassVar[int] = 0
    is_chunked: ClassVar[bool] = False
    num_kv_heads: ClassVar[int | None] = None
    head_size: ClassVar[int | None] = None
    sees_spans: ClassVar[bool] = False

    @property
    def query_size(self) -> int:
        """Elements of a head's query, and of its key."""
        return self.plain_size + self.rope_size

    @property
    def index_size(self) -> int:
        """Numbers that the cache has of a token for the index; 0 without one."""
        return 0 if self.index is None else self.index.cached_size

    def but(self, **changes: object) -> "LatentAttentionPlan":
        """A copy with other values."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class CompressionPlan:
    """How tokens that lie before the window are seen: by entries, one for each group of `rate` tokens.

    An entry is the normalised mean of what a product gives for the tokens of its group, each element weighted by the
    softmax of another product's and of a bias by the place in the group, and rotated as at the group's first position.
    With `overlaps`, the mean includes the tokens of the group before, each with a second value and weight. A token sees
    the entries of complete groups: those that an `index` chooses, if there is one, else all.
    """

    rate: int
    overlaps: bool = False
    index: "EntryIndexPlan | None" = None

    @property
    def parts(self) -> int:
        """Values and weights of a token."""
        return 2 if self.overlaps else 1


@dataclass(frozen=True, kw_only=True)
class EntryIndexPlan:
    """What chooses the entries that a token sees, where they are more than `top`: their keys, for `heads` of `size`.

    A key is made as the entry is, of products of its own. Queries are products of the latent that attention has.
    """

    heads: int
    size: int
    top: int


@dataclass(frozen=True, kw_only=True)
class CompressedAttentionPlan:
    """Attention with one key for all heads, which is their value, too, and perhaps entries in place of far keys.

    As in DeepSeek V4. Heads have `size` elements, the last `rope_size` rotated; what attention gives is rotated back.
    Queries are products of a latent of `query_rank`, each head normalised without a weight; `norm` is that of latents,
    keys and entries. A token sees the last `window` keys (0: all), a sink, and entries if there is a `compression`.
    What heads give is multiplied in `groups` of heads, to `group_rank` elements each, and these together.
    """

    size: int
    rope_size: int
    query_rank: int
    groups: int
    group_rank: int
    window: int
    rope: RopeConfig | None = RopeConfig()
    norm: NormPlan = NormPlan()
    compression: CompressionPlan | None = None

    is_causal: ClassVar[bool] = True
    chunk: ClassVar[int] = 0
    is_chunked: ClassVar[bool] = False
    num_heads: ClassVar[int | None] = None
    num_kv_heads: ClassVar[int | None] = None
    head_size: ClassVar[int | None] = None
    source: ClassVar[int | None] = None
    sees_spans: ClassVar[bool] = False

    @property
    def raw_size(self) -> int:
        """Numbers that the cache has of a token besides its key: what entries are made of."""
        made = self.compression
        index = 0 if made is None or made.index is None else made.index.size
        return 0 if made is None else 2 * made.parts * (self.size + index)

    @property
    def row_units(self) -> int:
        """Units, of the size of a key, of a token in the cache."""
        return 1 + -(-self.raw_size // self.size)

    @property
    def entry_units(self) -> int:
        """Units of an entry, after which its index key is; 0 if there are none."""
        made = self.compression
        index = 0 if made is None or made.index is None else made.index.size
        return 0 if made is None else 1 + -(-index // self.size)

    def but(self, **changes: object) -> "CompressedAttentionPlan":
        """A copy with other values."""
        return replace(self, **changes)  # type: ignore[arg-type]


AnyAttentionPlan = AttentionPlan | LatentAttentionPlan | CompressedAttentionPlan

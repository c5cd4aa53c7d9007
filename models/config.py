"""The description of a model in a checkpoint, independent of its family and of the spelling of its configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxllm.models.attention_plan import (
    AnyAttentionPlan,
    AttentionPlan,
    CompressedAttentionPlan,
    LatentAttentionPlan,
    RopeConfig,
)
from jaxllm.models.errors import ModelError
from jaxllm.models.mlp_plan import ExpertsPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan, OutputPlan, RecurrentPlan

if TYPE_CHECKING:
    from jaxllm.models.quantization.format import Format
    from jaxllm.models.towers.plan import TowerPlan
    from jaxllm.models.towers.sound import SoundPlan
    from jaxllm.pallas_kernels.linear.weight_type import WeightType


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape and options of a model; `layers` are its layers' plans.

    `dtype` is the checkpoint's own. With latent attention, `head_size` is that of what is rotated, and there is one KV
    head. A family that needs more derives a frozen dataclass from this one.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    layers: tuple[LayerPlan, ...]
    norm: NormPlan | None = NormPlan()
    embedding: EmbeddingPlan = EmbeddingPlan()
    output: OutputPlan = OutputPlan()
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    mtp_layers: int = 0
    """Layers after the last that predict further tokens."""
    tower: "TowerPlan | None" = None
    """How it sees images, if it does."""
    language: str = ""
    """The type of its language model, where names in the checkpoint depend on that."""
    sound: "SoundPlan | None" = None
    """How it hears, if it does."""
    dtype: str = "float32"
    weight_types: "tuple[tuple[str, WeightType], ...]" = ()
    """Types of quantized matrices outside of the layers, by the names of their modules: "embedding", "head", ..."""
    weight_format: "Format | None" = None
    """How the checkpoint keeps such matrices; None where it has none."""
    weight_method: str | None = None
    """The checkpoint's name of the way they were quantized ("awq"); None where it has none."""

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def has_cross_attention(self) -> bool:
        """Whether layers hear by cross attention, so that every request has sound."""
        return self.sound is not None and self.sound.token_id is None

    @property
    def is_quantized(self) -> bool:
        """Whether matrices have few bits."""
        types = (self.weight_types, *(layer.weight_types for layer in self.layers))
        return self.weight_format is not None or any(types)

    def mlp_sizes(self, *, with_experts: bool = True) -> tuple[int, ...]:
        """All sizes between the products of MLPs, and of experts, if they are to count."""
        residual = [layer.residual_mlp for layer in self.layers if layer.residual_mlp is not None]
        plans = dict.fromkeys([*(layer.mlp for layer in self.layers if layer.has_mlp), *residual])
        experts = [plan for plan in plans if isinstance(plan, ExpertsPlan)]
        dense = [plan.shared if isinstance(plan, ExpertsPlan) else plan for plan in plans]
        sizes = [plan.size or self.intermediate_size for plan in dense if plan is not None]
        return (*sizes, *(plan.size for plan in experts if with_experts))

    @property
    def expert_sizes(self) -> tuple[int, ...]:
        """The sizes between the products of experts, each once."""
        return tuple(dict.fromkeys(layer.mlp.size for layer in self.layers if isinstance(layer.mlp, ExpertsPlan)))

    @property
    def expert_counts(self) -> tuple[int, ...]:
        """How many experts there are in the layers that have some, each number once."""
        return tuple(dict.fromkeys(layer.mlp.count for layer in self.layers if isinstance(layer.mlp, ExpertsPlan)))

    def expert_split_problem(self, devices: int) -> str | None:
        """Why so many devices cannot share each expert where its matrices have few bits; None where they can."""
        if devices == 1:
            return None
        kinds = {
            (layer.mlp.size, kind)
            for layer in self.layers
            if isinstance(layer.mlp, ExpertsPlan)
            for name, kind in layer.weight_types
            if name == "mlp.expert_down"
        }
        return next(filter(None, (kind.split_problem(size, devices) for size, kind in kinds)), None)

    @property
    def embedding_size(self) -> int:
        """Columns of the embedding."""
        return self.embedding.size or self.hidden_size

    @property
    def output_tokens(self) -> int:
        """Tokens that the output layer scores: the first of the vocabulary, or all."""
        return self.output.tokens or self.vocab_size

    @property
    def output_size(self) -> int:
        """Columns of the output layer, where that is not the embedding."""
        transform = self.output.transform
        return (None if transform is None else transform.size) or self.embedding_size

    def heads_of(self, attention: AnyAttentionPlan) -> int:
        """Query heads of a layer."""
        return attention.num_heads or self.num_heads

    def kv_heads_of(self, attention: AnyAttentionPlan) -> int:
        """KV heads of a layer."""
        return attention.num_kv_heads or self.num_kv_heads

    def head_size_of(self, attention: AnyAttentionPlan) -> int:
        """Size of a layer's heads."""
        return attention.head_size or self.head_size

    @property
    def kv_heads(self) -> tuple[tuple[int, int], ...]:
        """Number and size of KV heads, once each of those that layers with attention have."""
        plans = [layer.attention for layer in self.attention_layers] or [layer.attention for layer in self.layers[:1]]
        return tuple(dict.fromkeys((self.kv_heads_of(plan), self.head_size_of(plan)) for plan in plans))

    @property
    def attention_heads(self) -> tuple[tuple[int, int, int], ...]:
        """Numbers of query and of KV heads, and their size, once each of those that layers with attention have."""
        plans = [layer.attention for layer in self.attention_layers] or [layer.attention for layer in self.layers[:1]]
        kinds = ((self.heads_of(plan), self.kv_heads_of(plan), self.head_size_of(plan)) for plan in plans)
        return tuple(dict.fromkeys(kinds))

    @property
    def expert_heads(self) -> tuple[int, ...]:
        """Query heads of each expert, where layers have experts in place of heads."""
        plans = (layer.attention for layer in self.attention_layers)
        own = (plan for plan in plans if isinstance(plan, AttentionPlan) and plan.experts is not None)
        return tuple(dict.fromkeys(self.kv_heads_of(plan) for plan in own))

    @property
    def attention_layers(self) -> tuple[LayerPlan, ...]:
        """The layers that keep keys and values."""
        return tuple(layer for layer in self.layers if layer.recurrence is None)

    @property
    def recurrences(self) -> tuple[RecurrentPlan, ...]:
        """Recurrences of the layers that keep a state."""
        return tuple(layer.recurrence for layer in self.layers if layer.recurrence is not None)

    @property
    def latent(self) -> LatentAttentionPlan | None:
        """The latent attention of all layers, if that is theirs."""
        attention = self.layers[0].attention if self.layers else None
        return attention if isinstance(attention, LatentAttentionPlan) else None

    @property
    def latents(self) -> tuple[LatentAttentionPlan, ...]:
        """Kinds of latent attention, each once."""
        plans = dict.fromkeys(layer.attention for layer in self.attention_layers)
        return tuple(plan for plan in plans if isinstance(plan, LatentAttentionPlan))

    @property
    def compressed(self) -> tuple[CompressedAttentionPlan, ...]:
        """Kinds of attention to entries in place of far keys, each once, if all layers have such."""
        plans = dict.fromkeys(layer.attention for layer in self.attention_layers)
        return tuple(plan for plan in plans if isinstance(plan, CompressedAttentionPlan))

    @property
    def routes_by_token(self) -> bool:
        """Whether a table says which experts a token has, in some layers."""
        return any(isinstance(layer.mlp, ExpertsPlan) and layer.mlp.router.by_token for layer in self.layers)

    @property
    def looks_up_grams(self) -> bool:
        """Whether layers look up the last tokens together, see `WithGramsPlan`."""
        return any(plan.reads_tokens for plan in self.recurrences)

    @property
    def shared_choice(self) -> int:
        """How many keys are chosen at most by layers whose choice others share; 0 where none do."""
        shared = (plan.index.most for plan in self.latents if plan.shares_choice and plan.index is not None)
        return next(shared, 0)

    @property
    def index_heads(self) -> int:
        """Heads of each device that the cache has besides KV heads, in every layer: one where blocks are chosen."""
        plans = (layer.attention for layer in self.attention_layers)
        return int(any(isinstance(plan, AttentionPlan) and plan.index is not None for plan in plans))

    @property
    def windows(self) -> tuple[int, ...]:
        """Sliding window of each layer with attention, 0 for none."""
        return tuple(layer.attention.window for layer in self.attention_layers)

    def with_windows(self, windows: Sequence[int]) -> "ModelConfig":
        """A copy with other windows; if they are fewer, with as many of the first layers."""
        layers = zip(self.layers, windows, strict=False)
        return replace(self, layers=tuple(layer.with_window(window) for layer, window in layers))

    @property
    def is_causal(self) -> bool:
        """Whether tokens see those before them alone, so that the model can generate."""
        return all(layer.attention.is_causal for layer in self.layers)

    @property
    def sees_spans(self) -> bool:
        """Whether tokens of a span see one another, where prompts have images."""
        return any(layer.attention.sees_spans for layer in self.attention_layers)

    @property
    def shares_keys(self) -> bool:
        """Whether some layers read the keys and values of others."""
        return any(layer.attention.source is not None for layer in self.attention_layers)

    def bidirectional(self) -> "ModelConfig":
        """A copy with bidirectional attention, where a window has one half on each side. Raises `ModelError`."""
        for layer in self.layers:
            plan = layer.attention
            if layer.recurrence is not None or not isinstance(plan, AttentionPlan) or plan.is_chunked:
                raise ModelError(
                    f"{self.architecture}: bidirectional attention supports only windows and full attention"
                )
            if plan.source is not None:
                raise ModelError(
                    f"{self.architecture}: bidirectional attention does not support layers that share keys"
                )
            if plan.soft_cap is not None or plan.sinks or plan.alibi is not None:
                raise ModelError(
                    f"{self.architecture}: bidirectional attention does not support soft caps, sinks or ALiBi"
                )
            if plan.window == 1:
                raise ModelError(f"{self.architecture}: bidirectional attention requires a window greater than 1")
        layers = (layer.attending(is_causal=False, window=layer.attention.window // 2) for layer in self.layers)
        return replace(self, layers=tuple(layers))

    def within(self, length: int) -> "ModelConfig":
        """A copy without windows that no request of at most so many tokens can outgrow."""
        windows = [layer.attention.window for layer in self.layers]
        return self.with_windows([window if window < length else 0 for window in windows])

    @property
    def rope(self) -> RopeConfig | None:
        """The rotary embedding of the layers that see furthest, if any."""
        rotated = [layer.attention for layer in self.attention_layers if layer.attention.rope is not None]
        furthest = max(rotated, key=lambda each: each.window or self.max_position_embeddings + 1, default=None)
        return None if furthest is None else furthest.rope

    @property
    def has_grid_positions(self) -> bool:
        """Whether keys and queries of an image turn by their places in its grid, see `RopeConfig.sections`."""
        attention = (layer.attention.rope for layer in self.attention_layers)
        return any(rope is not None and bool(rope.sections) for rope in attention)

    @property
    def context_length(self) -> int:
        """Most positions the model is made for, rope scaling included.

        Linear and yarn scaling multiply the trained length. Dynamic scaling does not count: its frequencies follow
        from the length one asks for, so the plain length is the better default.
        """
        rope = self.rope
        if rope is not None and rope.kind in ("linear", "yarn"):
            return max(self.max_position_embeddings, int(rope.trained_length * rope.factor))
        return self.max_position_embeddings

"""BERT, RoBERTa and those that are like them, as generators: learned positions, and a transform before the output.

They are made for decoders of encoder-decoder models; with `is_decoder` each also generates alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxllm.models.attention_plan import AttentionPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.bert import LAYER_NAMES
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan, OutputPlan, OutputTransformPlan


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How one of them differs: its `prefix`, its `head` and the parts of that, and where its norms are.

    With `norms`, which are the names of those before attention, before the MLP, and after all layers, a layer has no
    norms after its blocks. `counts_from_padding`: positions are counted from after the padding token's number.
    `output` is the name of the output layer, or, `bias` that of its bias where it is tied. With a `projection`, of that
    name, embeddings may have a size of their own, which is option `size`.
    """

    prefix: str = "bert"
    head: str = "cls.predictions"
    transform: tuple[str, str] | None = ("transform.dense", "transform.LayerNorm")
    output: str = "cls.predictions.decoder"
    bias: str = "cls.predictions"
    counts_from_padding: bool = False
    positions: bool = True
    token_types: int = 2
    embedding_norm: bool = True
    norms: tuple[str, str, str] | None = None
    eps: float = 1e-12
    ids: tuple[int, int] | None = None
    activation: str = "gelu"
    size: str = "embedding_size"
    projection: str | None = None
    ties: bool = True
    defaults: Mapping[str, int] = field(default_factory=dict)

    def read(self, file: ConfigFile, architecture: str) -> ModelConfig:
        """The configuration."""
        ids = {} if self.ids is None else {"bos_token_id": self.ids[0], "eos_token_id": self.ids[1]}
        defaults = {"max_position_embeddings": 512, "hidden_act": self.activation, **self.defaults}
        file = file.reading(tie_word_embeddings=self.ties, **defaults, **ids)
        file.expect(is_decoder=True, add_cross_attention=False, use_task_id=False, position_embedding_type="absolute")
        file.ignore("task_type_vocab_size", "pooler_*", "directionality", "summary_*", "classifier_dropout_prob")
        sizes, norm = read_sizes(file), NormPlan(kind="layer", eps=file.number("layer_norm_eps", self.eps), bias=True)
        activation, is_before = read_activation(file, "hidden_act", self.activation), self.norms is not None
        before, behind = (norm, None) if is_before else (None, norm)
        layer = LayerPlan(
            attention=self.attention(file),
            mlp=MLPPlan(activation=activation, is_gated=False, bias=True),
            attention_norm=before,
            mlp_norm=before,
            attention_output_norm=behind,
            mlp_output_norm=behind,
            normalises_sum=not is_before,
        )
        offset = file.integer("pad_token_id", 1, minimum=0) + 1 if self.counts_from_padding else 0
        sizes["max_position_embeddings"] -= offset
        if sizes["max_position_embeddings"] < 1:
            raise file.wrong("max_position_embeddings", f"more than {offset}, where positions begin")
        embedding = EmbeddingPlan(
            positions=sizes["max_position_embeddings"] if self.positions else 0,
            position_offset=offset,
            token_types=file.integer("type_vocab_size", self.token_types) if self.token_types else 0,
            norm=norm if self.embedding_norm else None,
            scale=self.scale(file),
            **self.projected(file, sizes["hidden_size"]),
        )
        return ModelConfig(
            architecture=architecture,
            **sizes,
            layers=(layer,) * file.integer("num_hidden_layers"),
            norm=norm if is_before else None,
            embedding=embedding,
            output=OutputPlan(bias=True, transform=self.transformed(file, activation, norm)),
        )

    def attention(self, file: ConfigFile) -> AttentionPlan:
        """The attention of all layers."""
        return AttentionPlan(rope=None, qkv_bias=True, output_bias=True)

    def scale(self, file: ConfigFile) -> float:
        """The factor on rows of tokens."""
        return 1.0

    def projected(self, file: ConfigFile, hidden: int) -> dict[str, Any]:
        """Options of embeddings that are projected, if they are."""
        size = None if self.projection is None else file.optional_integer(self.size) or hidden
        return {} if size is None or size == hidden else {"size": size, "projects_sum": True}

    def transformed(self, file: ConfigFile, activation: str, norm: NormPlan) -> OutputTransformPlan | None:
        """What comes before the output layer, if anything. BERT's own has the activation of layers there."""
        final = activation if self.head == "cls.predictions" else "gelu"
        return None if self.transform is None else OutputTransformPlan(activation=final, norm=norm)

    def names(self, config: ModelConfig) -> Names:
        """Names in the checkpoint."""
        embeddings, layers = f"{self.prefix}.embeddings", f"{self.prefix}.encoder.layer.*"
        names: dict[str, str | Source] = {
            "embedding": f"{embeddings}.word_embeddings",
            "embedding.positions": f"{embeddings}.position_embeddings",
            "embedding.types": f"{embeddings}.token_type_embeddings",
            "embedding.norm": f"{embeddings}.LayerNorm",
            "embedding.projection": f"{self.prefix}.{self.projection}",
            "output_bias": self.bias,
            "head": self.output,
            **{f"layers.*.{ours}": f"{layers}.{LAYER_NAMES[theirs]}" for ours, theirs in _LAYERS.items()},
        }
        if self.transform is not None:
            dense, norm = (f"{self.head}.{part}" for part in self.transform)
            names |= {"transform.dense": dense, "transform.norm": norm}
        if self.norms is not None:
            attention, mlp, last = self.norms
            names |= {"layers.*.attention_norm": f"{layers}.{attention}", "layers.*.mlp_norm": f"{layers}.{mlp}"}
            names |= {"norm": f"{self.prefix}.{last}"}
        return names

    def family(self) -> Family:
        """The family of such models."""
        # A tied output layer is in the checkpoint under several names.
        return Family(
            self.read,
            weight_names=self.names,
            ignored_tensors=_IGNORED,
            other_parts=(f"{self.prefix}.pooler.", "cls.seq_relationship.", "discriminator_predictions."),
        )


_IGNORED = (
    "position_ids",
    ".decoder.weight",
    ".decoder.bias",
    "lm_head.weight",
    "lm_head.bias",
    "predictions.bias",
    ".embed_positions.weight",
)


@dataclass(frozen=True, kw_only=True)
class _RoFormer(_Kind):
    """Positions are rotations of queries and keys."""

    def attention(self, file: ConfigFile) -> AttentionPlan:
        """See `_Kind`."""
        file.expect(rotary_value=False)
        rope = RopeConfig(trained_length=file.integer("max_position_embeddings"), interleaved=True)
        return super().attention(file).but(rope=rope)


@dataclass(frozen=True, kw_only=True)
class _BigBird(_Kind):
    """Decoders see all tokens before them: attention within blocks is for encoders."""

    def attention(self, file: ConfigFile) -> AttentionPlan:
        """See `_Kind`."""
        file.ignore("attention_type", "block_size", "num_random_blocks")
        return super().attention(file).but(qkv_bias=file.boolean("use_bias", True))

    def scale(self, file: ConfigFile) -> float:
        """See `_Kind`."""
        return file.integer("hidden_size") ** 0.5 if file.boolean("rescale_embeddings", False) else 1.0


@dataclass(frozen=True, kw_only=True)
class _RemBert(_Kind):
    """Embeddings and the output layer have sizes of their own."""

    def projected(self, file: ConfigFile, hidden: int) -> dict[str, Any]:
        """See `_Kind`; the projection is there in any case."""
        file.expect(tie_word_embeddings=False)
        return {"size": file.integer(self.size, 256), "projects_sum": True}

    def transformed(self, file: ConfigFile, activation: str, norm: NormPlan) -> OutputTransformPlan | None:
        """See `_Kind`."""
        size = file.integer("output_embedding_size", 1664)
        return OutputTransformPlan(activation=activation, norm=norm, size=size)


_LAYERS: Mapping[str, str] = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.output",
    "attention_output_norm": "attention_norm",
    "mlp.up": "up",
    "mlp.down": "down",
    "mlp_output_norm": "mlp_norm",
}
"""Our modules, and those of encoders that have the same names in checkpoints."""

_ROBERTA = {
    "prefix": "roberta",
    "head": "lm_head",
    "transform": ("dense", "layer_norm"),
    "output": "lm_head.decoder",
    "bias": "lm_head",
    "counts_from_padding": True,
    "ids": (0, 2),
}

BERT = _Kind().family()
ERNIE = _Kind(prefix="ernie").family()
GENERATION = _Kind(
    head="lm_head", output="lm_head.decoder", bias="lm_head", transform=None, token_types=0, ids=(2, 1)
).family()
MEGATRON = _Kind(embedding_norm=False, norms=("attention.ln", "ln", "encoder.ln")).family()
ROBERTA = _Kind(**_ROBERTA).family()  # type: ignore[arg-type]
DATA2VEC = _Kind(**{**_ROBERTA, "prefix": "data2vec_text"}).family()  # type: ignore[arg-type]
PRE_NORM = _Kind(
    **{**_ROBERTA, "prefix": "roberta_prelayernorm"},  # type: ignore[arg-type]
    norms=("attention.LayerNorm", "intermediate.LayerNorm", "LayerNorm"),
).family()
ROBERTA_XL = _Kind(
    **_ROBERTA,  # type: ignore[arg-type]
    token_types=1,
    embedding_norm=False,
    norms=("attention.self_attn_layer_norm", "LayerNorm", "encoder.LayerNorm"),
    eps=1e-5,
).family()
_BIASED: dict[str, Any] = {"output": "generator_lm_head", "bias": "generator_lm_head"}
ELECTRA = _Kind(
    **_BIASED,
    prefix="electra",
    head="generator_predictions",
    transform=("dense", "LayerNorm"),
    projection="embeddings_project",
    defaults={"embedding_size": 128},
).family()
ROFORMER = _RoFormer(
    prefix="roformer",
    positions=False,
    projection="embeddings_project",
    defaults={"max_position_embeddings": 1536},
).family()
BIG_BIRD = _BigBird(activation="gelu_new", ids=(1, 2), defaults={"max_position_embeddings": 4096}).family()
REMBERT = _RemBert(
    prefix="rembert",
    transform=("dense", "LayerNorm"),
    bias="cls.predictions.decoder",
    size="input_embedding_size",
    projection="encoder.embedding_hidden_mapping_in",
    ties=False,
    ids=(312, 313),
).family()

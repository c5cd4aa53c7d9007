"""The decoders that were trained alongside ModernBERT (Ettin): its layers, causal, and its head before the output."""

from dataclasses import replace

from jaxllm.models.attention_plan import AttentionPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import FULL, SLIDING, layer_types, read_sizes, with_types
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan, OutputPlan, OutputTransformPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Its configuration. Windows are half of `local_attention`; the first layer has no norm before its attention."""
    ends = {"bos_token_id": 50281, "eos_token_id": 50282}
    file = file.reading(tie_word_embeddings=True, max_position_embeddings=8192, **ends)
    # It repeats half of `local_attention`.
    file.ignore("sliding_window")
    sizes, bias = read_sizes(file), file.boolean("attention_bias", False)
    norm = NormPlan(kind="layer", eps=file.number("norm_eps", 1e-5), bias=file.boolean("norm_bias", False))
    activation = read_activation(file, "hidden_activation", "gelu")
    ropes = {kind: _rope(file, kind) for kind in (FULL, SLIDING)}
    layer = LayerPlan(
        attention=AttentionPlan(rope=ropes[FULL], qkv_bias=bias, output_bias=bias),
        mlp=MLPPlan(activation=activation, bias=file.boolean("mlp_bias", False)),
        attention_norm=norm,
        mlp_norm=norm,
    )
    count, window = file.integer("num_hidden_layers"), (file.optional_integer("local_attention", 128) or 0) // 2
    every = file.integer("global_attn_every_n_layers", 3)
    types = layer_types(file, count, [SLIDING if number % every else FULL for number in range(count)])
    first, *others = with_types((layer,) * count, types, full={}, sliding={"rope": ropes[SLIDING], "window": window})
    transform = OutputTransformPlan(
        activation=read_activation(file, "classifier_activation", "gelu"),
        norm=norm,
        bias=file.boolean("classifier_bias", False),
    )
    return ModelConfig(
        architecture=architecture,
        **sizes,
        layers=(replace(first, attention_norm=None), *others),
        norm=norm,
        embedding=EmbeddingPlan(norm=norm),
        output=OutputPlan(bias=file.boolean("decoder_bias", True), transform=transform),
    )


_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def _rope(file: ConfigFile, kind: str) -> RopeConfig:
    """The rotary embedding of a kind of layers, from its section or, before transformers 5, a number."""
    whole, (key, default) = file.section("rope_parameters"), _THETAS[kind]
    own = None if whole is None else whole.section(kind)
    return read_rope(file, own or ConfigFile({"rope_theta": file.number(key, default)}, file.source))


def weight_names(config: ModelConfig) -> Names:
    """Gates and what they gate are one tensor, what the activation takes first."""
    wide, layer = config.intermediate_size, "model.layers.*"
    names: dict[str, str | Source] = {
        "embedding": "model.embeddings.tok_embeddings",
        "embedding.norm": "model.embeddings.norm",
        "norm": "model.final_norm",
        "transform.dense": "lm_head.dense",
        "transform.norm": "lm_head.norm",
        "head": "decoder",
        "output_bias": "decoder",
        "layers.*.attention_norm": f"{layer}.attn_norm",
        "layers.*.attention.query": f"{layer}.attn.q_proj",
        "layers.*.attention.key": f"{layer}.attn.k_proj",
        "layers.*.attention.value": f"{layer}.attn.v_proj",
        "layers.*.attention.output": f"{layer}.attn.Wo",
        "layers.*.mlp_norm": f"{layer}.mlp_norm",
        "layers.*.mlp.down": f"{layer}.mlp.Wo",
    }
    parts = fused(f"{layer}.mlp.Wi", {"gate": wide, "up": wide})
    return names | {f"layers.*.mlp.{name}": source for name, source in parts.items()}


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    ignored_tensors=(".rotary_emb.inv_freq", "decoder.weight"),
    other_heads=("lm_head.", "decoder."),
)

"""Whisper (arXiv 2212.04356): a decoder with cross attention, which hears windows of sound through its encoder."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, TapsAsMatrix, WithoutBias
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan
from jaxllm.models.towers.sound import TAPS, SoundPlan

NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
    "max_position_embeddings": "max_target_positions",
}
DEFAULTS = {
    "vocab_size": 51865, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536,
    "max_position_embeddings": 448, "tie_word_embeddings": True, "bos_token_id": 50256, "eos_token_id": 50256,
}  # fmt: skip
NORM = NormPlan(kind="layer", eps=1e-5, bias=True)
"""That of torch, whose eps no option changes."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Whisper's configuration, whose defaults are those of transformers.

    `scale_embedding` is read there, and used nowhere. What is said of tokens to suppress or to begin with is for who
    writes prompts.
    """
    # Older files also have the number of the encoder's layers under the usual name.
    file.ignore(
        "num_hidden_layers", "encoder_layerdrop", "decoder_layerdrop", "scale_embedding",
        "suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "use_weighted_layer_sum",
        "classifier_proj_size", "apply_spec_augment", "mask_time_*", "mask_feature_*", "median_filter_width",
    )  # fmt: skip
    whole = file
    file = file.reading(NAMES, **DEFAULTS)
    sizes, activation = read_sizes(file), read_activation(whole, "activation_function", "gelu")
    if sizes["hidden_size"] % sizes["num_heads"]:
        raise file.wrong("hidden_size", f"a multiple of decoder_attention_heads={sizes['num_heads']}")
    attention = AttentionPlan(rope=None, qkv_bias=True, output_bias=True)
    layer = LayerPlan(
        attention=attention,
        cross=attention,
        mlp=MLPPlan(activation=activation, is_gated=False, bias=True),
        attention_norm=NORM,
        cross_norm=NORM,
        mlp_norm=NORM,
    )
    return ModelConfig(
        architecture=architecture,
        **sizes,
        layers=(layer,) * whole.integer("decoder_layers", 4),
        norm=NORM,
        embedding=EmbeddingPlan(positions=sizes["max_position_embeddings"]),
        sound=read_sound(whole, activation),
    )


def read_sound(file: ConfigFile, activation: str) -> SoundPlan:
    """The plan of the encoder."""
    size, heads = file.integer("d_model", 384), file.integer("encoder_attention_heads", 6)
    if size % heads:
        raise file.wrong("d_model", f"a multiple of encoder_attention_heads={heads}")
    return SoundPlan(
        hidden_size=size,
        intermediate_size=file.integer("encoder_ffn_dim", 1536),
        num_layers=file.integer("encoder_layers", 4),
        num_heads=heads,
        num_bins=file.integer("num_mel_bins", 80),
        num_keys=file.integer("max_source_positions", 1500),
        activation=activation,
        norm=NORM,
    )


def without_bias(name: str, columns: int) -> Source:
    """The source of a product for keys, which has no bias, where the module has one."""
    return Source(name, WithoutBias(columns), {"bias": ".weight"})


def encoder_names(module: str, prefix: str, columns: int) -> Names:
    """Names in checkpoints of a `SoundEncoder` called `module` here and `prefix` there, of so many `columns`."""
    layer = f"{prefix}.layers.*"
    return {
        f"{module}.first": Source(f"{prefix}.conv1", TapsAsMatrix(TAPS)),
        f"{module}.second": Source(f"{prefix}.conv2", TapsAsMatrix(TAPS)),
        f"{module}.positions": f"{prefix}.embed_positions",
        f"{module}.norm": f"{prefix}.layer_norm",
        f"{module}.layers.*.attention_norm": f"{layer}.self_attn_layer_norm",
        f"{module}.layers.*.attention.query": f"{layer}.self_attn.q_proj",
        f"{module}.layers.*.attention.key": without_bias(f"{layer}.self_attn.k_proj", columns),
        f"{module}.layers.*.attention.value": f"{layer}.self_attn.v_proj",
        f"{module}.layers.*.attention.output": f"{layer}.self_attn.out_proj",
        f"{module}.layers.*.mlp_norm": f"{layer}.final_layer_norm",
        f"{module}.layers.*.mlp.up": f"{layer}.fc1",
        f"{module}.layers.*.mlp.down": f"{layer}.fc2",
    }


def names_of(config: ModelConfig) -> Names:
    """Names in the checkpoint."""
    layer, columns = "model.decoder.layers.*", config.hidden_size
    return {
        "embedding": "model.decoder.embed_tokens",
        "embedding.positions": "model.decoder.embed_positions",
        "norm": "model.decoder.layer_norm",
        "head": "proj_out",
        "layers.*.attention_norm": f"{layer}.self_attn_layer_norm",
        "layers.*.attention.query": f"{layer}.self_attn.q_proj",
        "layers.*.attention.key": without_bias(f"{layer}.self_attn.k_proj", columns),
        "layers.*.attention.value": f"{layer}.self_attn.v_proj",
        "layers.*.attention.output": f"{layer}.self_attn.out_proj",
        "layers.*.cross_norm": f"{layer}.encoder_attn_layer_norm",
        "layers.*.cross.query": f"{layer}.encoder_attn.q_proj",
        "layers.*.cross.output": f"{layer}.encoder_attn.out_proj",
        "sound.cross.*.key": f"{layer}.encoder_attn.k_proj",
        "sound.cross.*.value": f"{layer}.encoder_attn.v_proj",
        "layers.*.mlp_norm": f"{layer}.final_layer_norm",
        "layers.*.mlp.up": f"{layer}.fc1",
        "layers.*.mlp.down": f"{layer}.fc2",
        **encoder_names("sound.encoder", "model.encoder", columns),
    }


FAMILY = Family(
    read_config,
    weight_names=names_of,
    ignored_tensors=("proj_out.weight",),
)

"""BERT with rotary positions: NomicBert (arXiv 2402.01613), GTE (arXiv 2407.19669), and Jina's third embedder."""

from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import AttentionPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import OfExpert, Source, Transposed, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, HeadPlan, Names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.models.rotary_encoder import RotaryEncoder, RotaryEncoderConfig

_NOMIC_KEYS = {**gpt.KEYS, "layer_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function"}


def read_nomic(file: ConfigFile, architecture: str) -> ModelConfig:
    """NomicBert's: gates, no biases. The first releases spell their sizes as GPT-2 does.

    The second one has no gates, and experts in some layers.
    """
    rope = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_emb_fraction"}
    trained = {"max_position_embeddings": "max_trained_positions"} if file.has("max_trained_positions") else {}
    # Beyond its trained length the first releases stretch positions as the text grows, which is not done here.
    file.ignore("n_positions", "rotary_scaling_factor", "max_trained_positions", "pad_vocab_size_multiple")
    file.ignore("fused_*", "use_*", "dense_seq_output", "reorder_and_upcast_attn", "summary_*", "add_pooling_layer")
    off = ("causal", "prenorm", "parallel_block", "rotary_emb_interleaved", "use_rms_norm")
    gpt.refuse(file, **dict.fromkeys((*off, "scale_attn_by_inverse_layer_idx"), False))
    gpt.refuse(file, scale_attn_weights=True)
    file = file.reading({**_NOMIC_KEYS, **rope, **trained}, rope_theta=1000.0, max_position_embeddings=2048)
    config = _config(
        file, architecture, read_rope(file), _nomic_mlp(file), types=2, bias=file.boolean("qkv_proj_bias", False)
    )
    return _with_experts(file, config)


def _nomic_mlp(file: ConfigFile) -> MLPPlan:
    """With gates, or of two products."""
    wide, narrow = file.boolean("mlp_fc1_bias", False), file.boolean("mlp_fc2_bias", False)
    if wide and not narrow:
        raise file.wrong("mlp_fc2_bias", "true if 'mlp_fc1_bias' is")
    activation = file.text("hidden_act", "silu")
    if activation == "gelu":
        return MLPPlan(activation="gelu", is_gated=False, bias=wide, down_bias=narrow)
    if activation not in ("silu", "swiglu"):
        raise file.wrong("hidden_act", "gelu, silu or swiglu")
    return MLPPlan(activation="silu", bias=wide, down_bias=narrow)


def _with_experts(file: ConfigFile, config: ModelConfig) -> ModelConfig:
    """The same with experts in every so many layers, from the second on."""
    every = file.integer("moe_every_n_layers", 0, minimum=0)
    if not every:
        file.ignore("num_experts", "moe_top_k")
        return config
    file.ignore("moe_impl", "moe_loss_weight", "router_aux_loss_coef")
    mlp = config.layers[0].mlp
    if mlp.activation != "gelu":
        raise file.wrong("hidden_act", "gelu for a model with experts")
    if file.integer("ffn_div", 1) != 1:
        raise file.wrong("ffn_div", "1")
    count, per_token = file.integer("num_experts", 8), file.integer("moe_top_k", 1)
    if per_token > count:
        raise file.wrong("moe_top_k", f"at most 'num_experts', {count}")
    experts = ExpertsPlan(
        count=count,
        per_token=per_token,
        size=config.intermediate_size,
        activation=mlp.activation,
        is_gated=False,
        output_bias=True,
    )
    layers = tuple(
        replace(layer, mlp=experts) if number % every == 1 else layer for number, layer in enumerate(config.layers)
    )
    return replace(config, layers=layers)


def read_gte(file: ConfigFile, architecture: str) -> ModelConfig:
    """GTE's: gates, biases but for gates; rotary embeddings may be stretched by a fixed factor (NTK)."""
    file.ignore("unpad_inputs", "use_memory_efficient_attention", "layer_norm_type")
    gpt.refuse(file, pack_qkv=True)
    if file.text("layer_norm_type", "layer_norm") != "layer_norm":
        raise file.wrong("layer_norm_type", "layer_norm")
    file = file.reading(max_position_embeddings=8192, rope_theta=160_000.0)
    mlp = MLPPlan(activation=read_activation(file, "hidden_act", "gelu"), down_bias=True)
    return _config(file, architecture, _gte_rope(file), mlp, types=1, bias=True)


def read_jina(file: ConfigFile, architecture: str) -> ModelConfig:
    """Jina embeddings 3, without adapters: no gates, biases everywhere.

    Jina's own code (https://huggingface.co/jinaai/xlm-roberta-flash-implementation) has other names for some options.
    """
    if file.has("lora_adaptations"):
        raise file.wrong("lora_adaptations", "null: adapters are not supported")
    file.ignore("lora_*", "use_flash_attn", "use_reentrant", "load_trained_adapters", "task_instructions")
    theta = {"rope_theta": "rotary_emb_base"} if is_rotary(file) and not file.has("rope_theta") else {}
    file = file.reading(
        theta, max_position_embeddings=8194, rope_theta=10_000.0 if theta else 20_000.0, layer_norm_eps=1e-5
    )
    mlp = MLPPlan(activation=read_activation(file, "hidden_act", "gelu"), is_gated=False, bias=True)
    return _config(file, architecture, read_rope(file), mlp, types=1, bias=True)


def is_rotary(file: ConfigFile) -> bool:
    """Whether the configuration is one of Jina's XLM-RoBERTa, which has the name of the one without."""
    return file.text("position_embedding_type", "absolute") == "rotary"


def _gte_rope(file: ConfigFile) -> RopeConfig:
    """`ntk` multiplies the base by its factor f, and divides all frequencies by f ** (2 / head size)."""
    scaling = file.section("rope_scaling")
    if scaling is None or scaling.text("rope_type", scaling.text("type", "")) != "ntk":
        return read_rope(file)
    if scaling.has("mixed_b"):
        raise ModelError(f"{scaling.source}: 'mixed_b' is not supported")
    factor = scaling.number("factor")
    if factor <= 0:
        raise scaling.wrong("factor", "positive")
    size = file.integer("hidden_size") // file.integer("num_attention_heads")
    theta = file.number("rope_theta") * factor
    # The positions it is made for are those of the configuration.
    return RopeConfig(kind="linear", theta=theta, factor=factor ** (2 / size), trained_length=1)


def _config(
    file: ConfigFile, architecture: str, rope: RopeConfig, mlp: MLPPlan, *, types: int, bias: bool = False
) -> ModelConfig:
    """Layers whose norms follow the sums of residuals and blocks."""
    # What is only for predicting masked tokens, or for caches of decoders.
    file.ignore("tie_word_embeddings", "use_cache")
    norm = NormPlan(kind="layer", eps=file.number("layer_norm_eps", 1e-12), bias=True)
    layer = LayerPlan(
        attention=AttentionPlan(is_causal=False, rope=rope, qkv_bias=bias, output_bias=bias),
        mlp=mlp,
        attention_norm=None,
        attention_output_norm=norm,
        mlp_norm=None,
        mlp_output_norm=norm,
        normalises_sum=True,
    )
    return RotaryEncoderConfig(
        architecture=architecture,
        **read_sizes(file),
        layers=(layer,) * file.integer("num_hidden_layers"),
        norm=norm,
        token_types=file.integer("type_vocab_size", types, minimum=0),
    )


def _names(prefix: str, layer: str, parts: dict[str, Any], config: ModelConfig) -> Names:
    """Names in the checkpoint; `parts` are those inside a layer, with one tensor of queries, keys and values."""
    inside = f"{prefix}encoder.{layer}.*."
    attention = gpt.fused_attention(inside + parts.pop("query_key_value"), config)
    return {
        "embedding": f"{prefix}embeddings.word_embeddings",
        "types": f"{prefix}embeddings.token_type_embeddings",
        "norm": prefix + parts.pop("norm"),
        **attention,
        **{f"layers.*.{ours}": inside + theirs for ours, theirs in parts.items()},
    }


def nomic_names(config: ModelConfig) -> Names:
    """NomicBert's."""
    is_gated = isinstance(config.layers[0].mlp, MLPPlan) and config.layers[0].mlp.is_gated
    up = {"mlp.up": "mlp.fc11", "mlp.gate": "mlp.fc12"} if is_gated else {"mlp.up": "mlp.fc1"}
    names = _names(
        "nomic_bert.",
        "layers",
        {**_FLASH, "query_key_value": "attn.Wqkv", "attention.output": "attn.out_proj", **up, "mlp.down": "mlp.fc2"},
        config,
    )
    experts = [layer.mlp for layer in config.layers if isinstance(layer.mlp, ExpertsPlan)]
    return {**names, **(_expert_names(experts[0].count) if experts else {})}


def _expert_names(count: int) -> Names:
    """Experts lie one below the other, the last of their products transposed."""
    inside = "nomic_bert.encoder.layers.*.mlp"

    def expert(name: str, take: OfExpert) -> Source:
        return Source(f"{inside}.experts.mlp.{name}", take, {"weight": ""})

    return {
        "layers.*.mlp.router": f"{inside}.router.layer",
        "layers.*.mlp": Source(f"{inside}.experts", endings={"output_bias": ".bias"}),
        "layers.*.mlp.expert_up": expert("w1", OfExpert(count, in_rows=True)),
        "layers.*.mlp.expert_down": expert("w2", OfExpert(count, Transposed(), in_rows=True)),
    }


def jina_names(config: ModelConfig) -> Names:
    """Jina's."""
    mlp = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    parts = {**_FLASH, "query_key_value": "mixer.Wqkv", "attention.output": "mixer.out_proj", **mlp}
    return _names("roberta.", "layers", parts, config)


def gte_names(config: ModelConfig) -> Names:
    """GTE's."""
    parts = {
        "norm": "embeddings.LayerNorm",
        "query_key_value": "attention.qkv_proj",
        "attention.output": "attention.o_proj",
        "attention_output_norm": "attn_ln",
        "mlp.down": "mlp.down_proj",
        "mlp_output_norm": "mlp_ln",
    }
    wide = config.intermediate_size
    both: dict[str, Source] = fused("new.encoder.layer.*.mlp.up_gate_proj", {"up": wide, "gate": wide})
    mlp = {f"layers.*.mlp.{name}": source for name, source in both.items()}
    return {**_names("new.", "layer", parts, config), **mlp}


_FLASH = {"norm": "emb_ln", "attention_output_norm": "norm1", "mlp_output_norm": "norm2"}


def _family(read_config: Any, names: Any, prefix: str, **options: Any) -> Family:
    return Family(
        read_config,
        weight_names=names,
        use="embed",
        make_encoder=RotaryEncoder,
        head=HeadPlan(dense=True, bias=True),
        head_names={"dense": f"{prefix}pooler.dense", "out": "classifier"},
        other_heads=("cls.", "lm_head.", "pooler.", f"{prefix}pooler."),
        ignored_tensors=("position_ids", "inv_freq"),
        prefix=prefix,
        **options,
    )


NOMIC = _family(read_nomic, nomic_names, "nomic_bert.")
GTE = _family(read_gte, gte_names, "new.", renamed={"gte.": "new."})
JINA_V3 = _family(read_jina, jina_names, "roberta.", renamed={"jina_embeddings_v3.": "roberta."})

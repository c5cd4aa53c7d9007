"""Dots 3 Note: latent attention in every layer, to chosen keys or in a window whose latents have another size.

Rotated keys have a norm, and what heads give a gate. Images and sound are not used, nor are layers that predict further
tokens.
"""

from dataclasses import replace

from jaxllm.models.attention_plan import KeyIndexPlan, LatentAttentionPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek, deepseek_sparse
from jaxllm.models.families.common import FULL, SLIDING, layer_section, text_part
from jaxllm.models.families.expert_groups import sigmoid_router
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.mlp_plan import ExpertsPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan

INDEXED = "indexed_attention"
_SIZES = {
    "vocab_size": 152_064,
    "hidden_size": 5120,
    "intermediate_size": 13_824,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 46,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 524_288,
    "rms_norm_eps": 1e-5,
    "n_group": 1,
    "topk_group": 1,
    "bos_token_id": 151_643,
    "eos_token_id": 151_668,
}
_WINDOWED = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""Sizes of layers with a window, which published files have with `swa_` before them."""
_OF_LAYER = (*_WINDOWED, "qk_rope_head_dim", "head_dim")


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model."""
    file, names = text_part(file), {"shared_experts_intermediate_size": "moe_shared_expert_intermediate_size"}
    if not file.has("sliding_window"):
        names["sliding_window"] = "sliding_window_size"
    file = file.reading(names, **_SIZES, rope_theta=80_000_000.0)
    file.expect(mlp_bias=False, scoring_func="sigmoid", topk_method="noaux_tc", rope_interleave=True)
    count = file.integer("num_hidden_layers")
    kinds, dense = _layer_kinds(file, count), _dense_layers(file, count)
    router = sigmoid_router(file, groups=None)
    # Rotary embeddings are read for each kind of layers below, and the size of heads is that of no head here.
    plain = file.but(rope_parameters=None, rope_scaling=None, moe_layer_freq=1)
    config = deepseek.with_latent_experts(plain, architecture, router, dense, interleaved=True)
    file.ignore("head_dim", "moe_layer_freq")
    index = KeyIndexPlan(
        heads=file.integer("index_n_heads", 64),
        size=file.integer("index_head_dim", 128),
        top=file.integer("index_topk", 2048),
        interleaved=True,
    )
    layers = []
    for number, (layer, kind) in enumerate(zip(config.layers, kinds, strict=True)):
        own = _of_layer(file, number, kind)
        plan = _attention(own, kind, config.norm)
        if kind == INDEXED:
            if index.size < plan.rope_size:
                raise file.wrong("index_head_dim", f"at least 'qk_rope_head_dim' = {plan.rope_size}")
            plan = plan.but(index=index)
        if kind == SLIDING:
            plan = plan.but(window=file.integer("sliding_window", 512))
        layers.append(_with_shared(file, replace(layer, attention=plan)))
    return replace(config, layers=tuple(layers))


def _layer_kinds(file: ConfigFile, count: int) -> list[str]:
    """The kind of each layer. Published files say by options of their own whether there is an index, and windows."""
    has_index = file.boolean("use_dsa", True) if file.has("use_dsa") or not file.has("per_layer_config") else None
    has_windows = file.boolean("use_sliding_window", True)
    far = FULL if has_index is False else INDEXED
    kinds = [far if not has_windows or layer < 2 or layer % 4 == 1 else SLIDING for layer in range(count)]
    if file.has("layer_types"):
        kinds = file.texts("layer_types")
    if len(kinds) != count or set(kinds) - {FULL, INDEXED, SLIDING}:
        raise file.wrong("layer_types", f"a list of {count} of {FULL!r}, {INDEXED!r} and {SLIDING!r}")
    return [far if kind != SLIDING and has_index is not None else kind for kind in kinds]


def _dense_layers(file: ConfigFile, count: int) -> list[int]:
    """The layers without experts."""
    if file.has("mlp_layer_types"):
        file.ignore("first_k_dense_replace")
        return list(deepseek.dense_layers(file, 1))
    first = file.integer("first_k_dense_replace", 1, minimum=0)
    if isinstance(file.values.get("moe_layer_freq"), list):
        each = file.integers("moe_layer_freq")
        if len(each) < count:
            raise file.wrong("moe_layer_freq", f"a number, or a list of {count}")
    else:
        every = file.integer("moe_layer_freq", 1)
        each = [int(layer % every == 0) for layer in range(count)]
    return [layer for layer in range(count) if layer < first or not each[layer]]


def _of_layer(file: ConfigFile, number: int, kind: str) -> ConfigFile:
    """The file as a layer sees it: sizes of a section by its number, or those of all layers with windows."""
    file.ignore("swa_*")
    if file.has("per_layer_config"):
        section = layer_section(file, number)
        if section is None:
            return file
        section.ignore(*_OF_LAYER)
        return file.but(**{key: section.values[key] for key in _OF_LAYER if section.has(key)})
    if kind != SLIDING:
        return file
    own = {key: file.integer(f"swa_{key}", default) for key, default in _WINDOWED.items()}
    whole = file.integer("swa_head_dim", 256)
    return file.but(**own, qk_rope_head_dim=file.integer("swa_qk_rope_head_dim", whole - own["qk_nope_head_dim"]))


def _attention(file: ConfigFile, kind: str, norm: NormPlan | None) -> LatentAttentionPlan:
    """Attention of a layer, from the file as that sees it."""
    assert norm is not None
    heads, hidden = file.integer("num_attention_heads"), file.integer("hidden_size")
    if file.integer("num_key_value_heads") != heads:
        raise file.wrong("num_key_value_heads", f"{heads}, as many as 'num_attention_heads'")
    rank, query_rank = file.integer("kv_lora_rank"), file.integer("q_lora_rank")
    plan = LatentAttentionPlan(
        rank=rank,
        plain_size=file.integer("qk_nope_head_dim"),
        rope_size=file.integer("qk_rope_head_dim"),
        value_size=file.integer("v_head_dim"),
        query_rank=query_rank,
        rope=_rope(file, kind),
        norm=norm,
        latent_scale=(hidden / rank) ** 0.5,
        rope_norm=norm,
        bias=file.boolean("attention_bias", False),
        output_gate="heads",
        num_heads=heads,
    )
    # Queries are multiplied as latents are; of the index no choice depends on that.
    return plan.but(scale=plan.query_size**-0.5 * (hidden / query_rank) ** 0.5)


def _rope(file: ConfigFile, kind: str) -> RopeConfig:
    """The rotary embedding of a kind of layers, from a section of its own, from one for all of them, or from none."""
    # What part of a head is rotated follows from the sizes.
    size, whole = file.integer("qk_rope_head_dim"), file.section("rope_parameters") or file.section("rope_scaling")
    if whole is None:
        theta = file.number("swa_rope_theta", 50_000.0) if kind == SLIDING else file.number("rope_theta")
        section = ConfigFile({"rope_theta": theta}, file.source)
    else:
        is_nested = any(isinstance(value, dict) for value in whole.values.values())
        own = whole.section(kind) if is_nested else whole
        if own is None:
            raise whole.wrong(kind, "an object")
        section = own.but(partial_rotary_factor=1.0)
    return replace(read_rope(file.but(head_dim=size), section, interleaved=True), head_size=size)


def _with_shared(file: ConfigFile, layer: LayerPlan) -> LayerPlan:
    """The layer whose shared expert has a size of its own."""
    if not isinstance(layer.mlp, ExpertsPlan):
        return layer
    size = file.integer("shared_experts_intermediate_size", 1536) * file.integer("n_shared_experts", 1)
    assert layer.mlp.shared is not None
    return replace(layer, mlp=replace(layer.mlp, shared=replace(layer.mlp.shared, size=size)))


def weight_names(config: ModelConfig) -> Names:
    """Weight names, gates included."""
    gate = {"layers.*.attention.gate": "model.layers.*.self_attn.g_proj"}
    return {**deepseek_sparse.weight_names(config), **gate}


def other_parts(config: ModelConfig) -> tuple[str, ...]:
    """What predicts further tokens, sees or hears."""
    towers = ("model.vision_tower.", "model.audio_tower.", "vision_encoder.", "audio_encoder.", "audio_adapter.")
    return (f"model.layers.{config.num_layers}.", "model.mtp.", *towers)


FAMILY = Family(read_config, weight_names=weight_names, renamed=TEXT_PARTS, other_parts=other_parts)

"""Gemma 4: heads of another size in layers without a window, layers that read the keys of others, inputs by token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    every_nth_full,
    layer_section,
    layer_types,
    read_llama,
    read_ropes,
    text_part,
    with_biases,
    with_experts,
    with_norms,
    with_types,
)
from jaxllm.models.families.family import SANDWICH_NAMES, TEXT_PARTS, Family, Names
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan, OutputPlan, TokenInputPlan, TokenInputsPlan

OTHER_PARTS = tuple(
    f"model.{part}." for part in ("vision_tower", "embed_vision", "audio_tower", "embed_audio", "vision_embedder")
)
"""What else checkpoints have."""

_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "rope_parameters": _ROPES,
}


def read_gemma4(file: ConfigFile, architecture: str) -> ModelConfig:
    """Gemma 4's configuration."""
    file = text_part(file).reading({"hidden_act": "hidden_activation"}, **_DEFAULTS)
    return _read(file, architecture, window=512, token_inputs=256)


def read_unified(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of Gemma 4 12B, which sees and hears without towers, and has no inputs by token."""
    file = text_part(file).reading(
        {"hidden_act": "hidden_activation"}, **(_DEFAULTS | {"max_position_embeddings": 262_144})
    )
    return _read(file, architecture, window=1024, token_inputs=0)


def _read(file: ConfigFile, architecture: str, *, window: int, token_inputs: int) -> ModelConfig:
    ropes = read_ropes(file)
    options, norm = read_llama(file, rope=ropes[SLIDING]), NormPlan(eps=file.number("rms_norm_eps", 1e-6))
    count = len(options["layers"])
    types = layer_types(file, count, every_nth_full(count, 6))
    # As in transformers, whatever is said of the last one.
    types[-1:] = [FULL] * min(count, 1)
    bias = file.boolean("attention_bias", False)
    layers = with_norms(
        with_biases(options["layers"], qkv=bias, output=bias), attention_output_norm=norm, mlp_output_norm=norm
    )
    layers = with_types(
        [layer.attending(norm=norm, value_norm=norm_without(norm), scale=1.0) for layer in layers],
        types,
        full={"rope": ropes[FULL], "values_are_keys": file.boolean("attention_k_eq_v", False)},
        sliding={"window": file.optional_integer("sliding_window", window) or 0},
    )
    layers = tuple(replace(layer, output_scale=True) for layer in _with_heads(file, layers, types, options))
    layers = with_sources(file, layers, types)
    if file.boolean("use_double_wide_mlp", False):
        layers = _double_wide(layers, options["intermediate_size"])
    layers = _with_experts(file, layers, norm)
    each, layers = with_token_inputs(file, layers, norm, token_inputs)
    options |= {
        "layers": layers,
        "norm": norm,
        "embedding": EmbeddingPlan(scale=options["hidden_size"] ** 0.5, scaled=True, each_layer=each),
        "output": OutputPlan(soft_cap=file.optional_number("final_logit_softcapping")),
    }
    config = ModelConfig(architecture=architecture, **options)
    return config.bidirectional() if file.text("use_bidirectional_attention", "vision") == "all" else config


def norm_without(norm: NormPlan) -> NormPlan:
    """The same norm without a weight."""
    return replace(norm, weight=False)


def _with_heads(
    file: ConfigFile, layers: Sequence[LayerPlan], types: Sequence[str], options: dict[str, Any]
) -> list[LayerPlan]:
    """The layers with their own heads, which are alike in all of a type. Raises `ModelError` where they are not."""
    heads = [options["num_kv_heads"], options["head_size"]]
    whole = list(heads)
    if not file.has("per_layer_config"):
        whole[1] = file.integer("global_head_dim", 512)
        given = file.optional_integer("num_global_key_value_heads")
        if given is not None and file.boolean("attention_k_eq_v", True):
            whole[0] = given
        own = [whole if kind == FULL else heads for kind in types]
    else:
        # As transformers 5 writes it: layers that are as the file says of all are not in it.
        file.ignore("global_head_dim", "num_global_key_value_heads")
        sections = [layer_section(file, number) or ConfigFile({}) for number in range(len(layers))]
        own = [
            [section.integer("num_key_value_heads", heads[0]), section.integer("head_dim", heads[1])]
            for section in sections
        ]
    for kind in set(types):
        found = [heads for heads, other in zip(own, types, strict=True) if other == kind]
        if any(heads != found[0] for heads in found):
            raise file.wrong("per_layer_config", f"the same for all layers of type {kind!r}")
        if found[0][1] % 2 or options["num_heads"] % found[0][0]:
            raise ModelError(
                f"{file.source}: layers of type {kind!r} have {found[0][0]} KV heads of size {found[0][1]}: the size "
                f"must be even, and the number must divide the {options['num_heads']} attention heads"
            )
    return [_with_own_heads(layer, *heads) for layer, heads in zip(layers, own, strict=True)]


def _with_own_heads(layer: LayerPlan, num_kv_heads: int, head_size: int) -> LayerPlan:
    rope = layer.attention.rope
    assert rope is not None
    return layer.attending(num_kv_heads=num_kv_heads, head_size=head_size, rope=replace(rope, head_size=head_size))


def with_sources(file: ConfigFile, layers: Sequence[LayerPlan], types: Sequence[str]) -> tuple[LayerPlan, ...]:
    """The last layers read keys and values of the last one of their type before them.

    Raises `ModelError` where there is none.
    """
    shared = file.integer("num_kv_shared_layers", 0, minimum=0)
    first = len(layers) - shared
    if not shared:
        return tuple(layers)
    last = {kind: number for number, kind in enumerate(types[: max(first, 0)])}
    missing = sorted(set(types) - set(last))
    if missing:
        raise ModelError(
            f"{file.source}: 'num_kv_shared_layers' is {shared}, which leaves no layer of type {missing[0]!r} whose "
            f"keys the others could read"
        )
    return tuple(
        layer if number < first else layer.attending(source=last[types[number]]) for number, layer in enumerate(layers)
    )


def _double_wide(layers: Sequence[LayerPlan], size: int) -> tuple[LayerPlan, ...]:
    """Layers without keys have MLPs of twice the size."""
    return tuple(
        layer if layer.attention.source is None else replace(layer, mlp=replace(layer.mlp, size=2 * size))
        for layer in layers
    )


def _with_experts(file: ConfigFile, layers: Sequence[LayerPlan], norm: NormPlan) -> tuple[LayerPlan, ...]:
    """If there are some: alongside the MLP of each layer, both normalised before and after."""
    if not file.boolean("enable_moe_block", False):
        file.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
        return tuple(layers)
    mixed = with_experts(
        file,
        layers,
        count=file.integer("num_experts"),
        per_token=file.integer("top_k_experts"),
        size=file.integer("moe_intermediate_size"),
        router=RouterPlan(norm=norm_without(norm), normalised=True, expert_scale=True),
        norm=norm,
    )
    found = []
    for layer, own in zip(mixed, (layer.mlp for layer in layers), strict=True):
        assert isinstance(layer.mlp, ExpertsPlan)
        assert isinstance(own, MLPPlan)
        found.append(replace(layer, mlp=replace(layer.mlp, shared=own), mlp_norm=None))
    return tuple(found)


def with_token_inputs(
    file: ConfigFile, layers: Sequence[LayerPlan], norm: NormPlan, default: int
) -> tuple[TokenInputsPlan | None, tuple[LayerPlan, ...]]:
    """The layers' own embeddings of tokens, if there are some, and the layers with them."""
    size = file.integer("hidden_size_per_layer_input", default, minimum=0)
    if not size:
        file.ignore("vocab_size_per_layer_input")
        return None, tuple(layers)
    own = TokenInputPlan(size=size, activation=file.text("hidden_act"), norm=norm)
    rows = file.integer("vocab_size_per_layer_input", 262_144)
    return TokenInputsPlan(size=size, vocab_size=rows, norm=norm), tuple(
        replace(layer, token_input=own) for layer in layers
    )


def weight_names(config: ModelConfig) -> Names:
    """Weight names of layers with norms after their blocks, and Gemma 4's additions."""
    layer = "model.layers.*"
    names: dict[str, str | Source] = {
        **SANDWICH_NAMES,
        **TOKEN_INPUT_NAMES,
        "layers.*.output_scale": Source(f"{layer}.layer_scalar", endings={"weight": ""}),
    }
    plan = config.layers[0].mlp
    if not isinstance(plan, ExpertsPlan):
        return names
    halves = (plan.size, plan.size)
    return {
        **names,
        **{f"layers.*.mlp.shared.{part}": f"{layer}.mlp.{part}_proj" for part in ("gate", "up", "down")},
        "layers.*.mlp.shared_norm": f"{layer}.pre_feedforward_layernorm",
        "layers.*.mlp.shared_output_norm": f"{layer}.post_feedforward_layernorm_1",
        "layers.*.mlp.expert_norm": f"{layer}.pre_feedforward_layernorm_2",
        "layers.*.mlp.expert_output_norm": f"{layer}.post_feedforward_layernorm_2",
        "layers.*.mlp.router": Source(
            f"{layer}.router",
            endings={"weight": ".proj.weight", "input_scale": ".scale", "expert_scale": ".per_expert_scale"},
        ),
        **{
            f"layers.*.mlp.expert_{part}": _of_expert("gate_up_proj", OfExpert(plan.count, Fused(halves, index)))
            for index, part in enumerate(("gate", "up"))
        },
        "layers.*.mlp.expert_down": _of_expert("down_proj", OfExpert(plan.count)),
    }


def _of_expert(tensor: str, take: OfExpert) -> Source:
    return Source(f"model.layers.*.experts.{tensor}", take, {"weight": ""})


TOKEN_INPUT_NAMES = {
    "token_inputs.table": "model.embed_tokens_per_layer",
    "token_inputs.projection": "model.per_layer_model_projection",
    "token_inputs.norm": "model.per_layer_projection_norm",
    "layers.*.token_input.gate": "model.layers.*.per_layer_input_gate",
    "layers.*.token_input.projection": "model.layers.*.per_layer_projection",
    "layers.*.token_input.norm": "model.layers.*.post_per_layer_input_norm",
}


def other_parts(config: ModelConfig) -> tuple[str, ...]:
    """Checkpoints may have keys and values of layers that read those of others."""
    readers = [number for number, layer in enumerate(config.layers) if layer.attention.source is not None]
    unused = ("k_proj", "v_proj", "k_norm", "v_norm")
    return OTHER_PARTS + tuple(f"model.layers.{number}.self_attn.{name}." for number in readers for name in unused)


FAMILY = Family(read_gemma4, weight_names=weight_names, renamed=TEXT_PARTS, other_parts=other_parts)
UNIFIED = replace(FAMILY, read_config=read_unified)

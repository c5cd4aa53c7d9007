"""Reading what nearly every configuration of a decoder has."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import AttentionPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan

FULL, SLIDING = "full_attention", "sliding_attention"


def read_sizes(file: ConfigFile) -> dict[str, Any]:
    """`ModelConfig` arguments which every configuration has; defaults are those of `file`.

    Without a number of KV heads there are as many as query heads, and without a head size the heads share the hidden
    size evenly. Raises `ModelError` for missing or impossible sizes.
    """
    hidden_size, num_heads = file.integer("hidden_size"), file.integer("num_attention_heads")
    num_kv_heads = file.optional_integer("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise ModelError(f"{file.source}: {num_heads} attention heads are not a multiple of {num_kv_heads} KV heads")
    head_size = file.optional_integer("head_dim") or hidden_size // num_heads
    if head_size % 2 or head_size == 0:
        raise ModelError(f"{file.source}: head size {head_size}; rotary embeddings need a positive even one")
    return {
        "vocab_size": file.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_size": head_size,
        "intermediate_size": file.integer("intermediate_size"),
        "tie_word_embeddings": file.boolean("tie_word_embeddings", False),
        "max_position_embeddings": file.integer("max_position_embeddings"),
        "bos_token_id": file.optional_integer("bos_token_id", minimum=0),
        "eos_token_ids": file.token_ids("eos_token_id"),
    }


def read_layers(file: ConfigFile, rope: RopeConfig) -> tuple[LayerPlan, ...]:
    """Layers as Llama has them, without biases: all alike, with the activation and eps of `file`."""
    norm = NormPlan(eps=file.number("rms_norm_eps", 1e-6))
    attention = AttentionPlan(rope=rope)
    mlp = MLPPlan(activation=read_activation(file, "hidden_act", "silu"))
    plan = LayerPlan(attention=attention, mlp=mlp, attention_norm=norm, mlp_norm=norm)
    return (plan,) * file.integer("num_hidden_layers")


def read_llama(file: ConfigFile, *, interleaved: bool = False, rope: RopeConfig | None = None) -> dict[str, Any]:
    """`ModelConfig` arguments of Llama without biases; its rotary embedding may be given."""
    sizes = read_sizes(file)
    layers = read_layers(file, rope or read_rope(file, interleaved=interleaved))
    return {**sizes, "layers": layers, "norm": layers[0].attention_norm}


def with_biases(layers: Sequence[LayerPlan], *, qkv: bool, output: bool, mlp: bool = False) -> tuple[LayerPlan, ...]:
    """The same layers with biases on their products."""
    return tuple(
        replace(
            layer,
            attention=layer.attention.but(qkv_bias=qkv, output_bias=output),
            mlp=replace(layer.mlp, bias=mlp),
        )
        for layer in layers
    )


def with_experts(
    file: ConfigFile,
    layers: Sequence[LayerPlan],
    *,
    count: int,
    per_token: int,
    size: int,
    router: RouterPlan,
    only: Collection[int] | None = None,
    **options: Any,
) -> tuple[LayerPlan, ...]:
    """The same layers with experts in place of their MLPs, or only those with the numbers in `only`.

    `options` are others of `ExpertsPlan`. Raises `ModelError` if a token is to have more experts than there are.
    """
    if per_token > count:
        raise ModelError(f"{file.source}: {per_token} experts per token, but there are {count}")
    ignore_training(file)
    return tuple(
        replace(
            layer,
            mlp=ExpertsPlan(
                count=count,
                per_token=per_token,
                size=size,
                activation=layer.mlp.activation,
                bias=layer.mlp.bias,
                router=router,
                **options,
            ),
        )
        if only is None or number in only
        else layer
        for number, layer in enumerate(layers)
    )


def sparse_layers(file: ConfigFile, num_layers: int) -> tuple[int, ...]:
    """Numbers of the layers that have experts, as Qwen's configurations say it."""
    dense, step = file.integers("mlp_only_layers"), file.integer("decoder_sparse_step", 1)
    return tuple(layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0)


def ignore_training(file: ConfigFile) -> None:
    """Note that options of experts which count in training alone change nothing."""
    file.ignore("output_router_logits", "router_aux_loss_coef", "*jitter*")


def without_gates(layers: Sequence[LayerPlan]) -> tuple[LayerPlan, ...]:
    """The same layers with feed-forward blocks of two products."""
    plans = [layer.mlp for layer in layers]
    ungated = [replace(plan, is_gated=False) if isinstance(plan, MLPPlan) else plan for plan in plans]
    return tuple(replace(layer, mlp=plan) for layer, plan in zip(layers, ungated, strict=True))


def with_windows(layers: Sequence[LayerPlan], windows: Sequence[int]) -> tuple[LayerPlan, ...]:
    """The same layers, each with its window."""
    return tuple(layer.attending(window=window) for layer, window in zip(layers, windows, strict=True))


def with_norms(layers: Sequence[LayerPlan], **norms: NormPlan | None) -> tuple[LayerPlan, ...]:
    """The same layers with other norms around their blocks, by the names that `LayerPlan` has for them."""
    return tuple(replace(layer, **norms) for layer in layers)  # type: ignore[arg-type]


def with_types(
    layers: Sequence[LayerPlan], types: Sequence[str], *, full: Mapping[str, Any], sliding: Mapping[str, Any]
) -> tuple[LayerPlan, ...]:
    """The same layers with other values of their attention, for each what its type has."""
    by_type = {FULL: full, SLIDING: sliding}
    return tuple(layer.attending(**by_type[kind]) for layer, kind in zip(layers, types, strict=True))


def every_nth_full(num_layers: int, period: int) -> list[str]:
    """Types of layers where the last of every `period` has no window; 0 gives all of them a window."""
    return [FULL if period and (layer + 1) % period == 0 else SLIDING for layer in range(num_layers)]


def layer_types(file: ConfigFile, num_layers: int, default: Sequence[str], other: str = SLIDING) -> list[str]:
    """For each layer, `FULL` or the `other` kind. Raises `ModelError` for other kinds of layers."""
    types = file.texts("layer_types") if file.has("layer_types") else list(default)
    if len(types) != num_layers:
        raise ModelError(f"{file.source}: 'layer_types' has {len(types)} entries for {num_layers} layers")
    unknown = sorted(set(types) - {FULL, other})
    if unknown:
        raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r} in 'layer_types'")
    return types


def mlp_types(file: ConfigFile, num_layers: int, *, dense: int) -> list[str]:
    """For each layer, "dense" or "sparse", from `mlp_layer_types`; without it the first `dense` ones are."""
    if not file.has("mlp_layer_types"):
        return ["dense" if layer < dense else "sparse" for layer in range(num_layers)]
    types = file.texts("mlp_layer_types")
    if len(types) != num_layers or set(types) - {"dense", "sparse"}:
        raise file.wrong("mlp_layer_types", f"a list of {num_layers} strings, 'dense' or 'sparse'")
    return types


def qwen_windows(file: ConfigFile, num_layers: int) -> tuple[int, ...]:
    """Sliding windows from `layer_types`, else from `use_sliding_window` and `max_window_layers`, as Qwen has them."""
    window = file.optional_integer("sliding_window", 4096)
    if not file.boolean("use_sliding_window", False):
        window = None
    first = file.optional_integer("max_window_layers", 28, minimum=0) or 0
    by_number = [SLIDING if layer >= first else FULL for layer in range(num_layers)]
    return tuple((window or 0) if kind == SLIDING else 0 for kind in layer_types(file, num_layers, by_number))


def read_ropes(file: ConfigFile, *, local_theta: float | None = None) -> dict[str, RopeConfig]:
    """Rotary embeddings of layers `FULL` and `SLIDING`, from sections of their own or, before transformers 5, one.

    Scaling is for full layers then, and others have `local_theta`, or the same theta.
    """
    whole = file.section("rope_parameters")
    if whole is not None and any(whole.has(kind) for kind in (FULL, SLIDING)):
        default = ConfigFile({}, whole.source)
        return {kind: read_rope(file, whole.section(kind) or default) for kind in (FULL, SLIDING)}
    theta = file.number("rope_theta", 10000.0) if local_theta is None else local_theta
    plain = ConfigFile({"rope_theta": theta}, file.source)
    return {FULL: read_rope(file), SLIDING: read_rope(file, plain)}


def text_part(file: ConfigFile) -> ConfigFile:
    """The configuration of the language model in that of one which also sees images; those are not used."""
    text = file.section("text_config")
    if text is None:
        return file
    file.ignore("*")
    shared = {key: file.values[key] for key in ("bos_token_id", "eos_token_id", "tie_word_embeddings") if file.has(key)}
    return text.reading(**shared)


def layer_section(file: ConfigFile, number: int) -> ConfigFile | None:
    """What `per_layer_config` has of a layer, if it has something.

    transformers writes the numbers with as many digits as the last layer's has.
    """
    sections = file.section("per_layer_config")
    if sections is None:
        return None
    keys = [key for key in sections.values if key.isdecimal() and int(key) == number]
    return sections.section(keys[0]) if keys else None

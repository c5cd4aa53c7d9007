"""Llama 4, the language model: attention within chunks, layers without rotary embedding, experts weighted before."""

from dataclasses import replace

from jaxllm.models.attention_plan import QueryScale
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source, Transposed
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import FULL, layer_types, read_llama, text_part, with_biases, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, OTHER_PARTS, TEXT_PARTS, Family, Names
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan

CHUNKED = "chunked_attention"


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Llama 4's configuration, or that of its language model in one which also sees images."""
    sizes = {"head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 131072}
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    file = text_part(file).reading(**sizes, **ids, rms_norm_eps=1e-5, rope_theta=500_000.0)
    options, bias = read_llama(file, interleaved=True), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    layers = _attending(file, layers)
    dense = file.integer("intermediate_size_mlp", 16384)
    layers = tuple(replace(layer, mlp=replace(layer.mlp, size=dense)) for layer in layers)
    size = options["intermediate_size"]
    options["layers"] = with_experts(
        file,
        layers,
        only=_with_experts(file, len(layers)),
        count=file.integer("num_local_experts", 16),
        per_token=file.integer("num_experts_per_tok", 1),
        size=size,
        router=RouterPlan(kind="chosen_sigmoid"),
        scales_input=True,
        shared=MLPPlan(activation=layers[0].mlp.activation, size=size),
    )
    return ModelConfig(architecture=architecture, **options)


def _attending(file: ConfigFile, layers: tuple[LayerPlan, ...]) -> tuple[LayerPlan, ...]:
    """The layers with their attention: rotated and normalised, or neither, and mostly within chunks."""
    interval = file.integer("no_rope_layer_interval", 4)
    rotated = file.integers("no_rope_layers") or [(layer + 1) % interval for layer in range(len(layers))]
    if len(rotated) < len(layers):
        raise ModelError(f"{file.source}: 'no_rope_layers' has {len(rotated)} entries for {len(layers)} layers")
    types = layer_types(file, len(layers), [CHUNKED if each else FULL for each in rotated], other=CHUNKED)
    chunk = file.optional_integer("attention_chunk_size", 8192) or 0
    norm = NormPlan(eps=file.number("rms_norm_eps"), weight=False) if file.boolean("use_qk_norm", True) else None
    scale = _query_scale(file)
    made = []
    for layer, is_rotated, kind in zip(layers, rotated, types, strict=False):
        if not is_rotated and kind == CHUNKED and scale is not None:
            raise ModelError(
                f"{file.source}: 'no_rope_layers' and 'layer_types': a layer within chunks and without rotary "
                f"embedding, whose queries grow ('attn_temperature_tuning'), is not supported"
            )
        plan = layer.attending(window=chunk, is_chunked=True) if kind == CHUNKED and chunk else layer
        own = {"norm": norm, "norm_is_last": True} if is_rotated else {"rope": None, "query_scale": scale}
        made.append(plan.attending(**own))
    return tuple(made)


def _query_scale(file: ConfigFile) -> QueryScale | None:
    """How queries grow in layers without rotary embedding. Early configurations have a number for the switch."""
    key = "attn_temperature_tuning"
    is_number = type(file.values.get(key)) is int
    is_tuned = file.integer(key, minimum=0) if is_number else file.boolean(key, True)
    scale = QueryScale(beta=file.number("attn_scale", 0.1), length=file.integer("floor_scale", 8192), offset=1)
    return scale if is_tuned else None


def _with_experts(file: ConfigFile, num_layers: int) -> tuple[int, ...]:
    """Numbers of the layers that have experts."""
    step = file.integer("interleave_moe_layer_step", 1)
    return tuple(file.integers("moe_layers")) if file.has("moe_layers") else tuple(range(step - 1, num_layers, step))


def weight_names(config: ModelConfig) -> Names:
    """Experts are one tensor, transposed, the gates before what they gate."""
    plan = next((layer.mlp for layer in config.layers if isinstance(layer.mlp, ExpertsPlan)), None)
    block = "model.layers.*.feed_forward"
    dense = {part: f"{part}_proj" for part in ("gate", "up", "down")}
    names: dict[str, str | Source] = {
        **LLAMA_NAMES,
        **{f"layers.*.mlp.{part}": f"{block}.{name}" for part, name in dense.items()},
        **{f"layers.*.mlp.shared.{part}": f"{block}.shared_expert.{name}" for part, name in dense.items()},
        "layers.*.mlp.router": f"{block}.router",
    }
    if plan is None:
        return names
    count, halves, endings = plan.count, (plan.size, plan.size), {"weight": ""}

    def wide(index: int) -> Source:
        return Source(f"{block}.experts.gate_up_proj", OfExpert(count, Transposed(Fused(halves, index))), endings)

    names |= {"layers.*.mlp.expert_gate": wide(0), "layers.*.mlp.expert_up": wide(1)}
    return {
        **names,
        "layers.*.mlp.expert_down": Source(f"{block}.experts.down_proj", OfExpert(count, Transposed()), endings),
    }


FAMILY = Family(read_config, weight_names=weight_names, renamed=TEXT_PARTS, other_parts=("vision_model.", *OTHER_PARTS))

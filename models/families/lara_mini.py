"""Lara Mini (Translated): Qwen3.5's delta nets alongside windows and full attention, and experts in every layer."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import FULL, SLIDING, read_llama, with_biases, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.families.qwen2_moe import SHARED_NAMES
from jaxllm.models.families.qwen3_next import LINEAR, read_delta
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.recurrent_plan import GatedDeltaPlan

_DEFAULTS = {"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 131_072, "sliding_window": 512}
_PERIOD = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Lara Mini's configuration. Layers without a window do not see positions."""
    file = file.reading(**_DEFAULTS, tie_word_embeddings=True, eos_token_id=151_643)
    # There is no other MLP whose size would be needed.
    options = read_llama(file.but(intermediate_size=file.integer("moe_intermediate_size", 512)))
    bias, norm = file.boolean("attention_bias", False), options["norm"]
    count, window = len(options["layers"]), file.integer("sliding_window")
    full, *_ = (
        layer.attending(norm=norm, rope=None) for layer in with_biases(options["layers"], qkv=bias, output=bias)
    )
    rope = options["layers"][0].attention.rope
    kinds = {
        FULL: full,
        SLIDING: full.attending(rope=rope, window=window),
        LINEAR: replace(full, recurrence=read_delta(file, key_heads=8, value_heads=16)),
    }
    types = file.texts("layer_types") if file.has("layer_types") else [_PERIOD[layer % 5] for layer in range(count)]
    unknown = sorted(set(types) - set(kinds))
    if unknown or len(types) != count:
        problem = (
            f"has an unsupported type {unknown[0]!r}" if unknown else f"has {len(types)} entries for {count} layers"
        )
        raise ModelError(f"{file.source}: 'layer_types' {problem}")
    options["layers"] = with_experts(
        file,
        [kinds[kind] for kind in types],
        count=file.integer("num_experts", 128),
        per_token=file.integer("num_experts_per_tok", 4),
        size=file.integer("moe_intermediate_size", 512),
        router=RouterPlan(normalised=file.boolean("norm_topk_prob", True)),
        shared=MLPPlan(activation=full.mlp.activation, size=file.integer("shared_expert_intermediate_size", 512)),
    )
    return ModelConfig(architecture=architecture, **options)


BLOCK, MIXER = "model.layers.*.mlp.experts", "model.layers.*.linear_attn"


def weight_names(config: ModelConfig) -> Names:
    """All products before a recurrence are one tensor, and so are the experts."""
    plan = config.layers[0].mlp
    assert isinstance(plan, ExpertsPlan)
    sizes = (plan.size, plan.size)
    names: dict[str, str | Source] = {
        **LLAMA_NAMES,
        **SHARED_NAMES,
        "layers.*.mlp.router": "model.layers.*.mlp.gate",
        "layers.*.mlp.expert_gate": Source(
            f"{BLOCK}.gate_up_proj", OfExpert(plan.count, Fused(sizes, 0)), {"weight": ""}
        ),
        "layers.*.mlp.expert_up": Source(
            f"{BLOCK}.gate_up_proj", OfExpert(plan.count, Fused(sizes, 1)), {"weight": ""}
        ),
        "layers.*.mlp.expert_down": Source(f"{BLOCK}.down_proj", OfExpert(plan.count), {"weight": ""}),
    }
    for delta in config.recurrences[:1]:
        assert isinstance(delta, GatedDeltaPlan)
        mixed = {"query": delta.keys, "key": delta.keys, "value": delta.values}
        gates = {"gate": delta.values, "rate": delta.value_heads, "decay": delta.value_heads}
        parts = fused(f"{MIXER}.in_proj", {**mixed, **gates})
        parts |= fused(f"{MIXER}.conv1d", {f"{name}_taps": size for name, size in mixed.items()})
        names |= {f"layers.*.recurrence.{name}": source for name, source in parts.items()}
        names |= {
            "layers.*.recurrence": Source(MIXER, endings={"a_log": ".A_log", "dt_bias": ".dt_bias"}),
            "layers.*.recurrence.norm": f"{MIXER}.out_norm",
            "layers.*.recurrence.output": f"{MIXER}.out_proj",
        }
    return names


FAMILY = Family(read_config, weight_names=weight_names)

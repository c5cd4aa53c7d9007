"""Nemotron-H: state spaces, attention without positions, MLPs and experts, each a layer of the checkpoint."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.expert_groups import check_expert_groups, sigmoid_router
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.mamba2 import ATTENTION, MAMBA, OLD_KINDS, check_groups, state_space_names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import StateSpacePlan

DENSE, EXPERTS = "mlp", "moe"
LETTERS = {"M": MAMBA, "*": ATTENTION, "-": DENSE, "E": EXPERTS}
"""Kinds of blocks in `hybrid_override_pattern`."""


@dataclass(frozen=True, kw_only=True)
class NemotronHConfig(ModelConfig):
    """A layer here is a state space or attention, and the MLP after it, if there is one.

    `mixers` and `feed_forwards` are their numbers in the checkpoint, the latter -1 where there is none.
    """

    mixers: tuple[int, ...] = ()
    feed_forwards: tuple[int, ...] = ()


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Nemotron-H's configuration."""
    file.ignore(
        "chunk_size", "expand", "mtp_*", "num_nextn_predict_layers", "num_logits_to_keep", "rescale_prenorm_residual",
        "residual_in_fp32", "time_step_*", "use_mamba_kernels", "mamba_proj_bias", "moe_shared_expert_overlap",
        "num_hidden_layers", "mamba_ssm_cache_dtype", "n_shared_experts",
    )  # fmt: skip
    for key in ("sliding_window", "moe_latent_size"):
        if file.has(key):
            raise file.wrong(key, "null: others are not supported")
    kinds = _kinds(file)
    names = {"head_dim": "attention_head_dim"}
    file = file.reading(names, num_key_value_heads=8, head_dim=128, max_position_embeddings=4096)
    norm = NormPlan(eps=file.number("layer_norm_epsilon", 1e-5))
    file.expect(rms_norm_eps=norm.eps)
    plain = LayerPlan(attention=AttentionPlan(rope=None), has_mlp=False, attention_norm=norm, mlp_norm=None)
    # Biases of attention are in no checkpoint, whatever is said.
    file.ignore("attention_bias")
    blocks: dict[str, dict[str, Any]] = {ATTENTION: {}}
    if MAMBA in kinds:
        blocks[MAMBA] = {"recurrence": _state_space(file, norm)}
    if DENSE in kinds:
        blocks[DENSE] = {"mlp": _dense(file)}
    if EXPERTS in kinds:
        blocks[EXPERTS] = {"mlp": _experts(file)}
    layers: list[LayerPlan] = []
    mixers: list[int] = []
    feed_forwards: list[int] = []
    for number, kind in enumerate(kinds):
        if kind in (MAMBA, ATTENTION):
            layers.append(replace(plain, **blocks[kind]))
            mixers.append(number)
            feed_forwards.append(-1)
        elif not layers or feed_forwards[-1] >= 0:
            raise ModelError(
                f"{file.source}: 'layers_block_type' has {kind!r} at {number} without a mixer before it, which is not "
                "supported"
            )
        else:
            layers[-1] = replace(layers[-1], **blocks[kind], has_mlp=True, mlp_norm=norm)
            feed_forwards[-1] = number
    # Checkpoints have an output layer of their own, whatever is said.
    sizes = read_sizes(file) | {"tie_word_embeddings": False}
    return NemotronHConfig(
        architecture=architecture,
        **sizes,
        layers=tuple(layers),
        norm=norm,
        mixers=tuple(mixers),
        feed_forwards=tuple(feed_forwards),
    )


def _kinds(file: ConfigFile) -> list[str]:
    """The kind of each layer of the checkpoint. Raises `ModelError` for an unknown one."""
    if file.has("hybrid_override_pattern") and not file.has("layers_block_type"):
        letters = list(file.text("hybrid_override_pattern"))
        kinds = [LETTERS.get(letter, letter) for letter in letters]
    else:
        file.ignore("hybrid_override_pattern")
        kinds = [OLD_KINDS.get(kind, kind) for kind in file.texts("layers_block_type")]
    unknown = sorted(set(kinds) - set(LETTERS.values()))
    if unknown or not kinds:
        raise ModelError(f"{file.source}: unsupported block {unknown[0] if unknown else ''!r} among the layers")
    return kinds


def _state_space(file: ConfigFile, norm: NormPlan) -> StateSpacePlan:
    plan = StateSpacePlan(
        heads=file.integer("mamba_num_heads", 128),
        head_size=file.integer("mamba_head_dim", 64),
        state_size=file.integer("ssm_state_size", 128),
        groups=file.integer("n_groups", 8),
        width=file.integer("conv_kernel", 4, minimum=2),
        activation=read_activation(file, "mamba_hidden_act", "silu"),
        bias=file.boolean("use_bias", False),
        convolution_bias=file.boolean("use_conv_bias", True),
        # As in transformers: no step is too large, whatever the file says.
        limits=(file.number("time_step_min", 0.001), math.inf),
        norm=norm,
    )
    return check_groups(file, plan, "n_groups")


def _dense(file: ConfigFile, size: int | None = None) -> MLPPlan:
    return MLPPlan(
        activation=read_activation(file, "mlp_hidden_act", "relu2"),
        is_gated=False,
        bias=file.boolean("mlp_bias", False),
        size=size,
    )


def _experts(file: ConfigFile) -> ExpertsPlan:
    plan = ExpertsPlan(
        count=file.integer("n_routed_experts", 8),
        per_token=file.integer("num_experts_per_tok", 2),
        size=file.integer("moe_intermediate_size", 7688),
        activation=read_activation(file, "mlp_hidden_act", "relu2"),
        is_gated=False,
        router=sigmoid_router(file),
        shared=_dense(file, file.integer("moe_shared_expert_intermediate_size", 7688)),
    )
    if plan.per_token > plan.count:
        raise ModelError(f"{file.source}: {plan.per_token} experts per token, but there are {plan.count}")
    check_expert_groups(file, plan.router, plan.count)
    return plan


def weight_names(config: ModelConfig) -> Names:
    """Blocks are numbered on their own in the checkpoint."""
    assert isinstance(config, NemotronHConfig)
    block = "backbone.layers.*.mixer"
    attention = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    mixers: Names = {
        "layers.*.attention_norm": "backbone.layers.*.norm",
        **{f"layers.*.attention.{name}": f"{block}.{tensor}" for name, tensor in attention.items()},
    }
    for plan in config.recurrences[:1]:
        assert isinstance(plan, StateSpacePlan)
        mixers = {**mixers, **state_space_names(block, plan)}
    feed_forwards: Names = {
        "layers.*.mlp_norm": "backbone.layers.*.norm",
        "layers.*.mlp.up": f"{block}.up_proj",
        "layers.*.mlp.down": f"{block}.down_proj",
        "layers.*.mlp.router": replace(source_of(f"{block}.gate"), endings={"correction": ".e_score_correction_bias"}),
        "layers.*.mlp.expert_up": f"{block}.experts.{{expert}}.up_proj",
        "layers.*.mlp.expert_down": f"{block}.experts.{{expert}}.down_proj",
        "layers.*.mlp.shared.up": f"{block}.shared_experts.up_proj",
        "layers.*.mlp.shared.down": f"{block}.shared_experts.down_proj",
    }
    return {
        "embedding": "backbone.embeddings",
        "norm": "backbone.norm_f",
        "head": "lm_head",
        **_numbered(mixers, config.mixers),
        **_numbered(feed_forwards, config.feed_forwards),
    }


def _numbered(names: Names, numbers: Sequence[int]) -> Names:
    """The same, where layer i is number `numbers[i]` of the checkpoint."""
    return {name: replace(source_of(source), layers=tuple(numbers)) for name, source in names.items()}


FAMILY = Family(read_config, weight_names=weight_names, prefix="backbone.", other_parts=("mtp.",))

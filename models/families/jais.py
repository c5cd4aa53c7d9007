"""Jais: GPT-2 with ALiBi in place of positions, a gated MLP, and the multipliers of muP (arXiv 2203.03466)."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import gpt, gpt2
from jaxllm.models.families.family import Names
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.plan import EmbeddingPlan, OutputPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Jais' configuration, in which the multipliers have an older and a newer name."""
    for key, known in (("position_embedding_type", "alibi"), ("activation_function", "swiglu")):
        if file.text(key, "") != known:
            raise file.wrong(key, f"{known!r}, as in all published checkpoints")
    if file.section("alibi_scaling"):
        raise ModelError(f"{file.source}: option 'alibi_scaling' is not supported")
    gpt.refuse(file, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    config = gpt2.read_with_mlp(file, architecture, MLPPlan(bias=True))
    by_size = file.boolean("scale_qk_dot_by_d", file.boolean("mup_scale_qk_dot_by_d", False))
    scale = config.head_size ** (-1.0 if by_size else -0.5)
    layer = config.layers[0].attending(alibi=8.0, scale=scale)
    by_width = file.number("mup_output_alpha", 1.0) * file.number("mup_width_scale", 1.0)
    return replace(
        config,
        layers=(layer,) * config.num_layers,
        embedding=EmbeddingPlan(scale=file.number("embeddings_scale", file.number("mup_embeddings_scale", 1.0))),
        output=OutputPlan(scale=file.number("width_scale", by_width)),
    )


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint."""
    layer = "transformer.h.*"
    matrices: dict[str, str | Source] = {
        **gpt.fused_attention(f"{layer}.attn.c_attn", config),
        "layers.*.attention.output": f"{layer}.attn.c_proj",
        "layers.*.mlp.gate": f"{layer}.mlp.c_fc2",
        "layers.*.mlp.up": f"{layer}.mlp.c_fc",
        "layers.*.mlp.down": f"{layer}.mlp.c_proj",
    }
    return {**gpt2.NAMES, **gpt.transposed(matrices)}


FAMILY = replace(
    gpt2.FAMILY,
    read_config=read_config,
    weight_names=weight_names,
    ignored_tensors=(*gpt.BUFFERS, "relative_pe.slopes"),
    like="GPT2",
)

"""StableLM: LayerNorm, a quarter of each head rotated, blocks after one another or in parallel."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import AsRow, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.norm_plan import NormPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """StableLM's configuration."""
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    # What the authors' own code calls them.
    names = {"layer_norm_eps": "norm_eps", "partial_rotary_factor": "rope_pct"}
    sizes = {"num_key_value_heads": 32, "max_position_embeddings": 4096, "partial_rotary_factor": 0.25}
    file = file.reading(names, **ids, **sizes)
    file.ignore("num_heads")
    file.expect(rotary_scaling_factor=1.0)
    norm = NormPlan(kind="layer", eps=file.number("layer_norm_eps", 1e-5), bias=True)
    parallel, options = file.boolean("use_parallel_residual", False), read_llama(file)
    options["layers"] = tuple(
        replace(layer, attention_norm=norm, mlp_norm=None if parallel else norm, is_parallel=parallel)
        for layer in with_biases(options["layers"], qkv=file.boolean("use_qkv_bias", False), output=False)
    )
    if file.boolean("qk_layernorm", False):
        heads = {"norm": replace(norm, bias=False), "norm_over": "heads", "norm_is_split": True}
        options["layers"] = tuple(layer.attending(**heads) for layer in options["layers"])
    return ModelConfig(architecture=architecture, **(options | {"norm": norm}))


def _head_norm(kind: str) -> Source:
    return Source(f"model.layers.*.self_attn.{kind}_layernorm.norms.{{expert}}", AsRow())


NAMES: Names = {
    **LLAMA_NAMES,
    "layers.*.attention.query_norm": _head_norm("q"),
    "layers.*.attention.key_norm": _head_norm("k"),
}

FAMILY = Family(read_config, weight_names=NAMES)

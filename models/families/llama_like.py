"""Families that are Llama under another name, or differ in a bias, a norm or the names of tensors."""

from dataclasses import replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    layer_types,
    read_llama,
    with_biases,
    with_norms,
    with_types,
    without_gates,
)
from jaxllm.models.families.family import Family, HeadPlan, Names
from jaxllm.models.families.llama import FAMILY as LLAMA
from jaxllm.models.norm_plan import NormPlan

_IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}


def read_seed_oss(file: ConfigFile, architecture: str) -> ModelConfig:
    """Seed-OSS: a switch for the bias of the output projection alongside that of the others."""
    sizes = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524_288}
    file = file.reading(**sizes, bos_token_id=0, eos_token_id=2)
    qkv, output = file.boolean("attention_bias", True), file.boolean("attention_out_bias", False)
    return _biased(file, architecture, qkv=qkv, output=output, mlp=file.boolean("mlp_bias", False))


def read_internlm(file: ConfigFile, architecture: str) -> ModelConfig:
    """InternLM 1: one switch for all biases of the attention."""
    file = file.reading(**_IDS, max_position_embeddings=2048)
    bias = file.boolean("bias", True)
    return _biased(file, architecture, qkv=bias, output=bias)


def read_internlm2(file: ConfigFile, architecture: str) -> ModelConfig:
    """InternLM 2 and 2.5: queries, keys and values of each KV head lie side by side, other names."""
    if file.boolean("bias", False):
        raise file.wrong("bias", "false, as in all published checkpoints")
    file = file.reading(**_IDS, max_position_embeddings=32768)
    return ModelConfig(architecture=architecture, **read_llama(file))


def read_internlm3(file: ConfigFile, architecture: str) -> ModelConfig:
    """InternLM 3: a switch for biases of queries, keys and values, one for all others."""
    sizes = {"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5}
    file = file.reading({"bias": "mlp_bias", "qkv_bias": "attention_bias"}, **_IDS, **sizes)
    bias = file.boolean("bias", False)
    return _biased(file, architecture, qkv=file.boolean("qkv_bias", False), output=bias, mlp=bias)


def read_orion(file: ConfigFile, architecture: str) -> ModelConfig:
    """Orion: LayerNorm in the place of RMS norms."""
    options = read_llama(file.reading(**_IDS, max_position_embeddings=4096, rms_norm_eps=1e-5))
    norm = NormPlan(kind="layer", eps=options["norm"].eps, bias=True)
    layers = with_norms(options["layers"], attention_norm=norm, mlp_norm=norm)
    return ModelConfig(architecture=architecture, **(options | {"layers": layers, "norm": norm}))


def read_decilm(file: ConfigFile, architecture: str) -> ModelConfig:
    """DeciLM, where all layers have as many KV heads."""
    if file.has("block_configs"):
        raise file.wrong("block_configs", "null: layers of different kinds are not supported")
    per_layer = {int(count) for count in file.numbers("num_key_value_heads_per_layer")}
    if len(per_layer) != 1:
        raise file.wrong("num_key_value_heads_per_layer", "the same number for all layers")
    file = file.reading(**_IDS, max_position_embeddings=4096, num_key_value_heads=per_layer.pop())
    return ModelConfig(architecture=architecture, **read_llama(file))


def read_helium(file: ConfigFile, architecture: str) -> ModelConfig:
    """Helium: neighbours are rotated in pairs."""
    sizes = {"num_key_value_heads": 20, "head_dim": 128, "max_position_embeddings": 4096, "rms_norm_eps": 1e-8}
    file = file.reading(**_IDS, **sizes, rope_theta=100_000.0)
    bias, options = file.boolean("attention_bias", False), read_llama(file, interleaved=True)
    options["layers"] = with_biases(options["layers"], qkv=bias, output=False, mlp=file.boolean("mlp_bias", False))
    return ModelConfig(architecture=architecture, **options)


def read_arcee(file: ConfigFile, architecture: str) -> ModelConfig:
    """Arcee's AFM: feed-forward blocks without a gate, squared ReLU."""
    defaults = {"hidden_act": "relu2", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    file = file.reading(**defaults, bos_token_id=128000, eos_token_id=128001)
    bias, mlp_bias = file.boolean("attention_bias", False), file.boolean("mlp_bias", False)
    config = _biased(file, architecture, qkv=bias, output=bias, mlp=mlp_bias)
    return replace(config, layers=without_gates(config.layers))


def read_cwm(file: ConfigFile, architecture: str) -> ModelConfig:
    """Code World Model: Llama with a window on three of four layers."""
    defaults = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5}
    ids = {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]}
    file = file.reading(**defaults, **ids, rope_parameters=_CWM_ROPE)
    config = _biased(file, architecture, qkv=False, output=False, mlp=file.boolean("mlp_bias", False))
    count, window = config.num_layers, {"window": file.optional_integer("sliding_window", 8192) or 0}
    types = layer_types(file, count, [SLIDING if layer % 4 else FULL for layer in range(count)])
    return replace(config, layers=with_types(config.layers, types, full={}, sliding=window))


_CWM_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
"""How positions are stretched where the configuration does not say."""


def read_emu3(file: ConfigFile, architecture: str) -> ModelConfig:
    """Emu3's language model, whose vocabulary has the codes of images."""
    sizes = {"num_key_value_heads": 8, "max_position_embeddings": 9216, "rms_norm_eps": 1e-5}
    file = file.reading(**sizes, rope_theta=1_000_000.0, bos_token_id=151_849, eos_token_id=151_850)
    bias, mlp_bias = file.boolean("attention_bias", False), file.boolean("mlp_bias", False)
    return _biased(file, architecture, qkv=bias, output=bias, mlp=mlp_bias)


def _biased(file: ConfigFile, architecture: str, *, qkv: bool, output: bool, mlp: bool = False) -> ModelConfig:
    options = read_llama(file)
    options["layers"] = with_biases(options["layers"], qkv=qkv, output=output, mlp=mlp)
    return ModelConfig(architecture=architecture, **options)


def internlm2_names(config: ModelConfig) -> Names:
    """InternLM 2's."""
    size, group = config.head_size, config.num_heads // config.num_kv_heads
    heads = {"query": group * size, "key": size, "value": size}
    attention = fused("model.layers.*.attention.wqkv", heads, blocks=config.num_kv_heads)
    return {
        **{f"layers.*.attention.{name}": source for name, source in attention.items()},
        "embedding": "model.tok_embeddings",
        "norm": "model.norm",
        "head": "output",
        "layers.*.attention_norm": "model.layers.*.attention_norm",
        "layers.*.attention.output": "model.layers.*.attention.wo",
        "layers.*.mlp_norm": "model.layers.*.ffn_norm",
        "layers.*.mlp.gate": "model.layers.*.feed_forward.w1",
        "layers.*.mlp.up": "model.layers.*.feed_forward.w3",
        "layers.*.mlp.down": "model.layers.*.feed_forward.w2",
    }


SEED_OSS = Family(read_seed_oss)
INTERNLM = Family(read_internlm, like="Llama")
INTERNLM2 = Family(read_internlm2, weight_names=internlm2_names, like="Llama")
INTERNLM2_REWARD = replace(INTERNLM2, use="token_classify", head=HeadPlan(labels=1), head_names={"out": "v_head"})
INTERNLM3 = Family(read_internlm3, like="Llama")
ORION = Family(read_orion, like="StableLm")
DECILM = Family(read_decilm, like="Llama")
HELIUM = Family(read_helium)
ARCEE = Family(read_arcee)
CWM = Family(read_cwm)
EMU3 = Family(read_emu3)
AQUILA = XVERSE = YI = replace(LLAMA, like="Llama")

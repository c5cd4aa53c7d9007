"""RWKV-4: weighted means over time and MLPs that see the token before, and nothing else."""

from dataclasses import replace

from jaxllm.models.channel_plan import ShiftedMLPPlan, WeightedMeanPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import OfOne, Source, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.mamba2 import sizes_without_attention
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """RWKV-4's configuration. Each of its layers is two here, for time and for channels.

    transformers halves hidden states every few layers, for float16. That is, but for norms, as if it did not.
    """
    file = file.reading(
        {"max_position_embeddings": "context_length"}, max_position_embeddings=1024, bos_token_id=0, eos_token_id=0
    )
    hidden, count = file.integer("hidden_size", 4096), file.integer("num_hidden_layers", 32)
    channels = file.optional_integer("attention_hidden_size") or hidden
    size = file.optional_integer("intermediate_size") or 4 * hidden
    eps, every = file.number("layer_norm_epsilon", 1e-5), file.integer("rescale_every", 6, minimum=-1)

    def norm(layer: int, eps: float) -> NormPlan:
        """The norm of what is as many times as large as in transformers before a layer."""
        return NormPlan(kind="layer", eps=eps * 4.0 ** (layer // every if every > 0 else 0), bias=True)

    blocks = (
        WeightedMeanPlan(channels=channels, hidden_size=hidden),
        ShiftedMLPPlan(size=size, hidden_size=hidden),
    )
    plain = LayerPlan(has_mlp=False, mlp_norm=None)
    layers = (
        replace(plain, recurrence=block, attention_norm=norm(layer, eps)) for layer in range(count) for block in blocks
    )
    sizes = sizes_without_attention(file, channels, 1)
    return ModelConfig(
        architecture=architecture,
        **sizes | {"intermediate_size": size},
        layers=tuple(layers),
        # Its eps is torch's, whatever the file says.
        norm=norm(count, 1e-5),
        embedding=EmbeddingPlan(norm=norm(0, eps)),
    )


_TIME, _CHANNELS = "attention", "feed_forward"


def weight_names(config: ModelConfig) -> Names:
    """Layers of either kind have the same modules, some of them, under other names."""
    kinds = [_TIME if isinstance(plan, WeightedMeanPlan) else _CHANNELS for plan in config.recurrences]
    blocks = tuple(f"{layer // 2}.{kind}" for layer, kind in enumerate(kinds))
    mixed = ("key", "value", "receptance")
    inside = {
        "": Source("rwkv.blocks.*", endings={"decay": ".time_decay", "bonus": ".time_first"}),
        ".shift": Source("rwkv.blocks.*", OfOne(2), {name: f".time_mix_{name}" for name in mixed}),
        **{f".{name}": source_of(f"rwkv.blocks.*.{name}") for name in (*mixed, "output")},
    }
    norms = tuple(f"{layer // 2}.ln{1 if kind == _TIME else 2}" for layer, kind in enumerate(kinds))
    return {
        "embedding": "rwkv.embeddings",
        "embedding.norm": "rwkv.blocks.0.pre_ln",
        "norm": "rwkv.ln_out",
        "head": "head",
        "layers.*.attention_norm": Source("rwkv.blocks.*", layers=norms),
        **{f"layers.*.recurrence{name}": replace(source, layers=blocks) for name, source in inside.items()},
    }


FAMILY = Family(read_config, weight_names=weight_names, prefix="rwkv.")

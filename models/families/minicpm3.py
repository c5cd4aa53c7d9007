"""MiniCPM3: MiniCPM with latent attention."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family
from jaxllm.models.families.granite import scaled
from jaxllm.models.families.latent import latent_names, read_latent_llama
from jaxllm.models.plan import EmbeddingPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """MiniCPM3's configuration."""
    file = file.reading(
        max_position_embeddings=32768,
        rms_norm_eps=1e-5,
        q_lora_rank=768,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    if file.boolean("mlp_bias", False):
        raise file.wrong("mlp_bias", "false")
    options = read_latent_llama(file, interleaved=False)
    depth, hidden = len(options["layers"]), options["hidden_size"]
    return scaled(
        architecture,
        options,
        embedding=EmbeddingPlan(scale=file.number("scale_emb", 12.0), scaled=True),
        residual=file.number("scale_depth", depth**0.5 if "scale_depth" in file.values else 1.4) / depth**0.5,
        logits=file.number("dim_model_base", hidden if "dim_model_base" in file.values else 256) / hidden,
    )


FAMILY = Family(read_config, weight_names=latent_names)

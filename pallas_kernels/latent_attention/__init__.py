"""Latent attention: queries of many heads over one compressed key and value for every token."""

from jaxllm.pallas_kernels.latent_attention.api import (
    indexed_latent_attention,
    latent_attention,
    latent_cache_shape,
    prepare_latent,
)
from jaxllm.pallas_kernels.latent_attention.backend import (
    LATENT_BACKENDS,
    ChosenKeys,
    KeyIndex,
    LatentFeature,
    LatentGeometry,
    LatentOptions,
    LatentSizes,
    get_latent_backend,
)

__all__ = [
    "LATENT_BACKENDS",
    "ChosenKeys",
    "KeyIndex",
    "LatentFeature",
    "LatentGeometry",
    "LatentOptions",
    "LatentSizes",
    "get_latent_backend",
    "indexed_latent_attention",
    "latent_attention",
    "latent_cache_shape",
    "prepare_latent",
]

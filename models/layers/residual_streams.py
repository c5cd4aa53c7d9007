"""The kinds of residuals that are several streams: which layers they have, and what is around these."""

import jax.numpy as jnp

from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.altup import AltUpLayer, AltUpStreams
from jaxllm.models.layers.gated_streams import GatedStreams, GatedStreamsLayer
from jaxllm.models.layers.hyper_connections import HyperConnectedLayer, HyperStreams
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import GatedStreamsPlan, HyperConnectionsPlan, LayerPlan

Streams = AltUpStreams | GatedStreams | HyperStreams
"""The modules before and after the layers."""


def make_streams_layer(
    config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype
) -> AltUpLayer | GatedStreamsLayer | HyperConnectedLayer:
    """The layer of a plan that has streams."""
    if isinstance(plan.streams, GatedStreamsPlan):
        return GatedStreamsLayer(config, plan, options, dtype)
    kind = HyperConnectedLayer if isinstance(plan.streams, HyperConnectionsPlan) else AltUpLayer
    return kind(config, plan, options, dtype)


def make_streams(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> Streams:
    """What is around the layers of a model whose layers have streams."""
    plan = config.layers[0].streams
    assert plan is not None
    if isinstance(plan, HyperConnectionsPlan):
        return HyperStreams(config.hidden_size, plan, options)
    if isinstance(plan, GatedStreamsPlan):
        return GatedStreams(config.hidden_size, plan, options, dtype=dtype)
    return AltUpStreams(config.hidden_size, plan, options, dtype=dtype)

"""Blocks that keep a state of each request in place of keys and values of its tokens."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp

from jaxllm.models.cache import States
from jaxllm.models.channel_plan import RealGatedPlan, ShiftedMLPPlan, WeightedMeanPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.gram_plan import WithGramsPlan
from jaxllm.models.layers.channel_delta import ChannelDeltaNet
from jaxllm.models.layers.gated_delta import GatedDeltaNet
from jaxllm.models.layers.lightning import LightningAttention
from jaxllm.models.layers.matrix_memory import MatrixMemory
from jaxllm.models.layers.real_gated import RealGatedBlock
from jaxllm.models.layers.selective_scan import SelectiveScanMixer
from jaxllm.models.layers.short_convolution import ShortConvolution
from jaxllm.models.layers.state_space import StateSpaceMixer
from jaxllm.models.layers.weighted_mean import ChannelMixing, TimeMixing
from jaxllm.models.matrix_memory_plan import MatrixMemoryPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import RecurrentPlan
from jaxllm.models.recurrent_plan import (
    ChannelDeltaPlan,
    GatedDeltaPlan,
    LightningPlan,
    SelectiveScanPlan,
    ShortConvolutionPlan,
    StateSpacePlan,
)


class RecurrentBlock(Protocol):
    """The protocol of every kind."""

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; returns the arrays of its `StateGroup` with the rows' new states, too."""
        ...


KINDS: Mapping[type[RecurrentPlan], Callable[..., Any]] = {
    ChannelDeltaPlan: ChannelDeltaNet,
    GatedDeltaPlan: GatedDeltaNet,
    LightningPlan: LightningAttention,
    MatrixMemoryPlan: MatrixMemory,
    RealGatedPlan: RealGatedBlock,
    SelectiveScanPlan: SelectiveScanMixer,
    ShiftedMLPPlan: ChannelMixing,
    ShortConvolutionPlan: ShortConvolution,
    StateSpacePlan: StateSpaceMixer,
    WeightedMeanPlan: TimeMixing,
}
"""The blocks by their plans, made from `(config, plan, options, dtype=dtype)`."""


def make_recurrent(
    config: ModelConfig, plan: RecurrentPlan, options: ForwardOptions, *, dtype: jnp.dtype
) -> RecurrentBlock:
    """The block of a plan."""
    if isinstance(plan, WithGramsPlan):
        # What n-grams add is the layer's to make, before this block.
        plan = plan.block
    return cast(RecurrentBlock, KINDS[type(plan)](config, plan, options, dtype=dtype))

"""The weighted mean that models call."""

from collections.abc import Mapping

import jax

from jaxllm.pallas_kernels.recurrence import LayerStates, RecurrentOperation
from jaxllm.pallas_kernels.weighted_mean.inputs import WeightedMeanInputs
from jaxllm.pallas_kernels.weighted_mean.reference import reference_weighted_mean
from jaxllm.pallas_kernels.weighted_mean.xla import xla_weighted_mean

IMPLEMENTATIONS: Mapping[str, RecurrentOperation[WeightedMeanInputs]] = {
    "reference": reference_weighted_mean,
    "xla": xla_weighted_mean,
}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def weighted_mean(
    inputs: WeightedMeanInputs, states: LayerStates, *, platform: str = "cpu", implementation: str = "xla"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """RWKV-4's recurrence (arXiv 2305.13048, WKV).

    The output of token t is the mean of values v_i up to it, weighted by exp(k_i + (t - 1 - i) decay), and that of the
    token itself by exp(k_t + bonus). States hold sums divided by the exponential of the largest exponent.

    Args:
        inputs: what the step's tokens bring.
        states: float32 [L, slots, 3, D]: sum of values, sum of weights, largest exponent; zeros before any token.
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        float32 [T, D], finite but meaningless for padding, and the states after this step's tokens.

    Raises:
        KeyError: no implementation of that name.
    """
    return IMPLEMENTATIONS[implementation](inputs, states, platform=platform)

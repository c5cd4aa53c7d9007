"""Means of values by channel, weighted by exponentials of keys that decay, as RWKV has them."""

from jaxllm.pallas_kernels.weighted_mean.api import weighted_mean
from jaxllm.pallas_kernels.weighted_mean.inputs import WeightedMeanInputs

__all__ = ["WeightedMeanInputs", "weighted_mean"]

"""Hyper-connections give what transformers' modules give, of each family that has some."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx
from transformers.models.deepseek_v4 import modeling_deepseek_v4
from transformers.models.glm5_next import modeling_glm5_next
from transformers.models.hy_v4 import modeling_hy_v4

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.hyper_connections import HyperConnection, HyperStreams
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import HyperConnectionsPlan

COUNT, SIZE, TOKENS = 3, 16, 5
MIXED = HyperConnectionsPlan(count=COUNT, eps=1e-3, norm_eps=0.1, iterations=4)
OF_MEAN = HyperConnectionsPlan(count=COUNT, eps=1e-3, norm_eps=0.1, iterations=4, joins_by_weight=False)
UNMIXED = HyperConnectionsPlan(count=COUNT, eps=1e-3, norm_eps=0.1, iterations=0, magnitude=1.5, output_eps=1e-3)
SIZES = {"hidden_size": SIZE, "hc_mult": COUNT, "hc_eps": 1e-3, "rms_norm_eps": 0.1}
SINKHORN = {**SIZES, "hc_sinkhorn_iters": 4}
FAMILIES = {
    "deepseek_v4": (modeling_deepseek_v4, "DeepseekV4", transformers.DeepseekV4Config, SINKHORN, MIXED),
    "glm5_next": (modeling_glm5_next, "Glm5NextText", transformers.Glm5NextTextConfig, SINKHORN, OF_MEAN),
    "hy_v4": (modeling_hy_v4, "HYV4", transformers.HYV4Config, {**SIZES, "hc_magnitude": 1.5}, UNMIXED),
}


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.randn(tensor.shape) * 0.5)
    return module


def with_weights(module: Any, weights: dict[str, torch.Tensor]) -> Any:
    """Our module with the parameters of transformers'."""
    names = {"weight": "fn", "base": "base", "scale": "scale"}
    for name, theirs in names.items():
        if module.mixes is not None:
            value = next(value for key, value in weights.items() if key.removeprefix("hc_") == theirs)
            setattr(module.mixes, name, nnx.Param(jnp.asarray(value.detach().numpy())))
    return module


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_are_those_of_transformers(family: str) -> None:
    modules, prefix, make_config, options, plan = FAMILIES[family]
    torch.manual_seed(0)
    config = make_config(**options)
    theirs = randomised(getattr(modules, f"{prefix}HyperConnection")(config).float())
    needs_config = plan.joins_by_weight
    head = randomised(getattr(modules, f"{prefix}HyperHead")(*[config] * needs_config).float())
    streams, out = torch.randn(1, TOKENS, COUNT, SIZE), torch.randn(1, TOKENS, SIZE)
    with torch.no_grad():
        output, *mixing, wanted = theirs(streams)
        kept = torch.matmul(mixing[0].transpose(-1, -2), streams) if mixing else streams
        after = (output[..., None] * out[:, :, None] + kept).reshape(TOKENS, -1).numpy()
        last = head(streams)[0].numpy()
    ours = with_weights(HyperConnection(SIZE, plan, ForwardOptions()), dict(theirs.named_parameters()))
    around = with_weights(HyperStreams(SIZE, plan, ForwardOptions()), dict(head.named_parameters()))
    flat = jnp.asarray(streams.reshape(TOKENS, -1).numpy())

    def run(flat: jax.Array, out: jax.Array) -> tuple[jax.Array, ...]:
        joined, weights = ours.joined(flat, ALL_ROWS)
        return joined, ours.spread(flat, out, weights), around.joined(flat, ALL_ROWS)

    found = jax.jit(run)(flat, jnp.asarray(out[0].numpy()))
    for mine, of_torch in zip(found, (wanted[0].numpy(), after, last), strict=True):
        np.testing.assert_allclose(mine, of_torch, atol=1e-5)
    np.testing.assert_array_equal(around.of(found[0], ALL_ROWS), np.tile(found[0], (1, COUNT)))

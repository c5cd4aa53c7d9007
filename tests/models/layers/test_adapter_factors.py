"""Factors of adapters follow from products, whatever layout and type the weights have."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.causal_lm import abstract_model, load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.families.registry import lookup
from jaxllm.models.layers.adapter_factors import row_squares
from jaxllm.models.layers.adapter_slots import split_adapters
from jaxllm.models.options import AdapterShape, ForwardOptions
from jaxllm.models.quantization.online import quantized


@pytest.mark.parametrize(
    ("options", "method", "tolerance"),
    [
        ({"stack": "scan"}, None, 1e-5),
        ({"stack": "loop", "native_matmul": True}, None, 1e-5),
        ({"stack": "scan", "native_matmul": True}, "int8", 0.02),
        ({"stack": "loop"}, "int8_w8a8", 0.02),
    ],
)
def test_rows_have_the_lengths_of_the_checkpoint(options: dict[str, Any], method: str | None, tolerance: float) -> None:
    folder = find_model("demo")
    config, forward = read_config(folder), ForwardOptions(max_model_len=64, **options)
    if method is not None:
        config = quantized(config, lookup(config.architecture).names_of(config), method)
    model = load_model(Checkpoint(folder), config, forward, "float32")
    shape = AdapterShape(16, 8, "float32", has_vectors=True)
    adapted, slots = split_adapters(abstract_model(config, replace(forward, adapters=shape), "float32"))
    arrays = [jnp.zeros(each.shape, each.dtype) for each in slots.values()]
    measured = jax.jit(lambda *given: row_squares(adapted.merge(*given), "float32"))(nnx.split(model)[1], arrays)
    found = np.sort(np.concatenate([np.ravel(each) for each in measured]))
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    tensors = [each for each in Checkpoint(folder).tensors if each.name.removesuffix(".weight").endswith(names)]
    rows = [np.square(each.read(np.dtype(np.float32))).sum(axis=1) for each in tensors]
    np.testing.assert_allclose(found, np.sort(np.concatenate(rows)), rtol=tolerance)

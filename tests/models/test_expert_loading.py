"""Experts' tensors arrive where they belong: on every device, packed or not, in both stacks."""

import dataclasses
from pathlib import Path
from typing import Literal

import jax
import numpy as np
import pytest
from flax import nnx
from jax.experimental.pallas import tpu as pltpu

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import make_mesh
from tests.models import small
from tests.models.test_packed import logits

Kind = Literal["loop", "scan"]
EXPERTS, SIZE, HIDDEN = 4, 16, 16
PLAN = ExpertsPlan(count=EXPERTS, per_token=2, size=SIZE, router=RouterPlan(normalised=True))
LAYER = dataclasses.replace(small.MODEL.layers[0], mlp=PLAN)
MODEL = dataclasses.replace(
    small.MODEL, architecture="MixtralForCausalLM", intermediate_size=SIZE, num_kv_heads=4, layers=(LAYER, LAYER)
)
DEVICES = 4


def save(folder: Path) -> Path:
    """A checkpoint with an expert's tensors each for itself."""
    random = np.random.default_rng(0)
    values = {name: value for name, value in small.tensors().items() if ".mlp." not in name}
    for layer in range(2):
        inside = f"model.layers.{layer}"
        for name in ("k_proj", "v_proj"):
            values[f"{inside}.self_attn.{name}.weight"] = random.standard_normal((16, 16), np.float32)
        values[f"{inside}.block_sparse_moe.gate.weight"] = random.standard_normal((EXPERTS, HIDDEN), np.float32)
        for expert in range(EXPERTS):
            for name, shape in {"w1": (SIZE, HIDDEN), "w3": (SIZE, HIDDEN), "w2": (HIDDEN, SIZE)}.items():
                values[f"{inside}.block_sparse_moe.experts.{expert}.{name}.weight"] = random.standard_normal(
                    shape, np.float32
                )
    return small.save(folder, values)


@pytest.mark.parametrize("kind", ["loop", "scan"])
def test_experts_are_packed(tmp_path: Path, kind: Kind) -> None:
    folder = save(tmp_path)
    wanted = logits(folder, MODEL, ForwardOptions(), "float32", "auto")
    found = logits(folder, MODEL, ForwardOptions(stack=kind, native_matmul=True), "float32", "auto")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_experts_are_streamed_from_the_stack(tmp_path: Path) -> None:
    """By the kernel for TPUs, in Pallas's interpreter, with columns of zeros after each expert's own."""
    folder = save(tmp_path)
    wanted = logits(folder, MODEL, ForwardOptions(), "float32", "auto")
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        found = logits(folder, MODEL, ForwardOptions(stack="scan", moe_backend="tpu"), "float32", "auto")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("kind", ["loop", "scan"])
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_every_expert_arrives_at_its_devices(
    tmp_path: Path, kind: Kind, load_format: str, expert_parallel: bool
) -> None:
    folder = save(tmp_path)

    def load(options: ForwardOptions) -> dict[str, jax.Array]:
        model = load_model(open_weights(folder, load_format), MODEL, options, "float32")
        flat = nnx.to_flat_state(nnx.split(model)[1])
        return {".".join(map(str, path)): variable.get_raw_value() for path, variable in flat}

    mesh = make_mesh(jax.devices(), DEVICES)
    one = load(ForwardOptions(stack=kind))
    many = load(ForwardOptions(stack=kind, mesh=mesh, expert_parallel=expert_parallel))
    for name, array in many.items():
        if ".mlp." not in name or "router" in name:
            continue
        assert {shard.data.size for shard in array.addressable_shards} == {array.size // DEVICES}
        values = np.asarray(array)
        if "gate_up" in name and not expert_parallel:
            # A device's part of all experts, then the next one's.
            parts = values.reshape(-1, DEVICES, EXPERTS, 2, SIZE // DEVICES, HIDDEN)
            values = parts.transpose(0, 2, 3, 1, 4, 5).reshape(values.shape)
        np.testing.assert_array_equal(values, np.asarray(one[name]), name)

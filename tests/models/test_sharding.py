"""A model split over virtual devices: the same values, each device with its part only."""

from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.causal_lm import CausalLM, abstract_model, load_model
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import make_mesh, padded_vocab, working_sizes
from tests.models import small

Kind = Literal["loop", "scan"]
SPLIT = ("query_key_value", "output", "gate_up", "down", "embedding", "head")
PARTS = {"query_key_value": (16, 8, 8), "gate_up": (20, 20)}
"""Rows of the checkpoint's tensors in a parameter that holds several."""


def load(folder: Path, devices: int, stack: Kind, load_format: str = "auto") -> dict[str, jax.Array]:
    """Parameters by dotted path, on so many devices."""
    mesh = None if devices == 1 else make_mesh(jax.devices(), devices)
    model = load_model(
        open_weights(folder, load_format), small.MODEL, ForwardOptions(stack=stack, mesh=mesh), "float32"
    )
    return by_path(model)


def by_path(model: CausalLM) -> dict[str, Any]:
    return {".".join(map(str, path)): value.get_raw_value() for path, value in nnx.to_flat_state(nnx.split(model)[1])}


def as_on_one(name: str, array: jax.Array, devices: int) -> np.ndarray:
    """The array as it is on one device: no row of each device's part on its own, twice, or beyond the vocabulary."""
    values = np.asarray(array)
    module = name.split(".")[-2]
    if module in PARTS:
        axis = 1 if "layers.all" in name else 0
        blocks = np.stack(np.split(values, devices, axis))
        sizes = [max(size // devices, small.MODEL.head_size) for size in PARTS[module]]
        assert sum(sizes) == blocks.shape[axis + 1]
        parts = np.split(blocks, np.cumsum(sizes)[:-1], axis + 1)
        repeated = [size * devices // total for size, total in zip(sizes, PARTS[module], strict=True)]
        for part, times in zip(parts, repeated, strict=True):
            np.testing.assert_array_equal(part[::times].repeat(times, 0), part)
        return np.concatenate(
            [block for part, times in zip(parts, repeated, strict=True) for block in part[::times]], axis
        )
    if module in ("embedding", "head"):
        assert not values[small.MODEL.vocab_size :].any(), "padding is zero"
        return values[: small.MODEL.vocab_size]
    return values


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("stack", ["loop", "scan"])
@pytest.mark.parametrize("devices", [2, 4])
def test_every_value_arrives_at_its_device(tmp_path: Path, devices: int, stack: Kind, load_format: str) -> None:
    small.save(tmp_path)
    one, many = (load(tmp_path, count, stack, load_format) for count in (1, devices))
    assert one.keys() == many.keys()
    for name, array in many.items():
        np.testing.assert_array_equal(as_on_one(name, array, devices), np.asarray(one[name]), name)
        assert len(array.sharding.device_set) == devices
        parts = {shard.data.size for shard in array.addressable_shards}
        is_split = any(part in name.split(".") for part in SPLIT) and name.endswith("weight")
        assert parts == {array.size // devices if is_split else array.size}, name


def test_the_parts_of_a_vocabulary_are_whole_blocks() -> None:
    assert padded_vocab(small.MODEL, 1) == 24
    assert padded_vocab(small.MODEL, 4) == 4 * 128


def test_working_sizes() -> None:
    # 4 query heads, 2 KV heads, 20 feed-forward columns.
    assert working_sizes(small.MODEL) == [1, 2, 4]


def test_an_abstract_model_knows_its_places() -> None:
    mesh = make_mesh(jax.devices(), 4)
    names = by_path(abstract_model(small.MODEL, ForwardOptions(stack="scan", mesh=mesh), jnp.dtype("float32")))
    spec = names["layers.all.0:2:1.mlp.down.weight"].sharding.spec
    assert tuple(spec) == (None, None, "model")

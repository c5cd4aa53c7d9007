"""A model split over virtual devices: the same values, each device with its part only."""

from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.causal_lm import CausalLM, abstract_model, load_model
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import make_mesh, padded_vocab, working_sizes
from tests.models import small

Kind = Literal["loop", "scan"]
SPLIT = ("query", "key", "value", "output", "gate", "up", "down", "embedding", "head")


def load(folder: Path, devices: int, stack: Kind, load_format: str = "auto") -> dict[str, jax.Array]:
    """Parameters by dotted path, on so many devices."""
    mesh = None if devices == 1 else make_mesh(jax.devices(), devices)
    model = load_model(folder, small.MODEL, ForwardOptions(stack=stack, mesh=mesh), "float32", load_format)
    return by_path(model)


def by_path(model: CausalLM) -> dict[str, Any]:
    return {".".join(map(str, path)): value.get_raw_value() for path, value in nnx.to_flat_state(nnx.split(model)[1])}


def as_on_one(name: str, array: jax.Array, devices: int, wanted: tuple[int, ...]) -> np.ndarray:
    """The array without repeated KV heads and without padding of the vocabulary."""
    values = np.asarray(array)
    axis = 1 if "layers.all" in name else 0
    if values.shape == wanted:
        return values
    if "key" in name or "value" in name:
        heads = np.moveaxis(values, axis, 0).reshape(devices, small.MODEL.head_size, *np.delete(values.shape, axis))
        once = heads[:: devices // small.MODEL.num_kv_heads]
        assert all((heads[i] == once[i * small.MODEL.num_kv_heads // devices]).all() for i in range(devices))
        return np.moveaxis(once.reshape(-1, *heads.shape[2:]), 0, axis)
    assert not values[wanted[0] :].any(), "padding is zero"
    return values[: wanted[0]]


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("stack", ["loop", "scan"])
@pytest.mark.parametrize("devices", [2, 4])
def test_every_value_arrives_at_its_device(tmp_path: Path, devices: int, stack: Kind, load_format: str) -> None:
    small.save(tmp_path)
    one, many = (load(tmp_path, count, stack, load_format) for count in (1, devices))
    assert one.keys() == many.keys()
    for name, array in many.items():
        np.testing.assert_array_equal(as_on_one(name, array, devices, one[name].shape), np.asarray(one[name]), name)
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
    spec = names["layers.all.mlp.down.weight"].sharding.spec
    assert tuple(spec) == (None, None, "model")

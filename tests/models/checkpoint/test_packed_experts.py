"""Experts in one tensor are read as those of each."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxllm.models.checkpoint.packed_experts import with_experts_apart
from jaxllm.models.checkpoint.safetensors_file import Tensor, read_header

EXPERTS, GATED, HIDDEN = 3, 4, 5
BLOCK = "model.layers.0.mlp.experts"
WANTED = {f"{BLOCK}.{expert}.{part}_proj.weight" for expert in range(EXPERTS) for part in ("gate", "up", "down")}


def written(folder: Path, rows: int = 2 * GATED) -> dict[str, Tensor]:
    """Tensors of a checkpoint with the experts of one layer, by name."""
    random = np.random.default_rng(0)
    shapes = {"gate_up_proj": (EXPERTS, rows, HIDDEN), "down_proj": (EXPERTS, HIDDEN, GATED)}
    values = {f"{BLOCK}.{name}": random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(values, folder / "model.safetensors")
    return {tensor.name: tensor for tensor in read_header(folder / "model.safetensors")}


def test_each_experts_tensors_are_parts(tmp_path: Path) -> None:
    tensors = written(tmp_path)
    found = with_experts_apart(tensors, WANTED)
    assert found.keys() == WANTED
    float32 = np.dtype(np.float32)
    wide, narrow = (tensors[f"{BLOCK}.{name}"].read(float32) for name in ("gate_up_proj", "down_proj"))
    for expert in range(EXPERTS):
        gate, up, down = (found[f"{BLOCK}.{expert}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        np.testing.assert_array_equal(gate.read(float32), wide[expert, :GATED])
        np.testing.assert_array_equal(up.read(float32), wide[expert, GATED:])
        np.testing.assert_array_equal(down.read(float32), narrow[expert])


@pytest.mark.parametrize("rows", [2 * GATED, 7])
def test_what_is_not_wanted_apart_stays(tmp_path: Path, rows: int) -> None:
    tensors = written(tmp_path, rows)
    name = f"{BLOCK}.gate_up_proj"
    wanted = {name} if rows == 2 * GATED else WANTED
    assert with_experts_apart(tensors, wanted)[name] == tensors[name]

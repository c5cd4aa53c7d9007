"""Tensors are read before they are asked for, in order, within a bound, and with the values of `Tensor.read`."""

import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxllm.models.checkpoint import read_ahead as module
from jaxllm.models.checkpoint.host_parameter import Entries
from jaxllm.models.checkpoint.read_ahead import THREADS, read_ahead
from jaxllm.models.checkpoint.safetensors_file import Tensor, read_header
from jaxllm.models.errors import ModelError
from jaxllm.pallas_kernels.linear.cpu.packed import packed_layout

SHAPES = ((70, 33), (), (0, 4), (5,), (200, 40), (3, 4, 5))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def tensors(tmp_path: Path) -> list[Tensor]:
    random = np.random.default_rng(0)
    arrays = {f"tensor_{i}": random.random(shape).astype(np.float32) for i, shape in enumerate(SHAPES)}
    save_file(arrays, tmp_path / "model.safetensors")
    return read_header(tmp_path / "model.safetensors")


@pytest.mark.parametrize("ahead", [1, 10_000, 2**20])
@pytest.mark.parametrize("piece", [64, 4096, 2**20])
def test_values_and_order(monkeypatch: pytest.MonkeyPatch, tensors: list[Tensor], ahead: int, piece: int) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", ahead)
    monkeypatch.setattr(module, "PIECE_BYTES", piece)
    for dtype in (np.dtype(np.float32), BFLOAT16):
        found = list(read_ahead((tensor, dtype, None) for tensor in tensors))
        assert [tensor for tensor, _ in found] == tensors
        for tensor, values in found:
            assert isinstance(tensor, Tensor)
            assert isinstance(values, np.ndarray)
            assert values.dtype == dtype
            np.testing.assert_array_equal(values, tensor.read(dtype))


@pytest.mark.parametrize("buffer", [64, 4096])
def test_rows_packed_as_they_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, buffer: int) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 2 * 32 * 16 * 2)
    monkeypatch.setattr(module, "BUFFER_BYTES", buffer)
    matrix = np.random.default_rng(0).random((203, 32)).astype(np.float32)
    save_file({"matrix": matrix}, tmp_path / "file")
    (tensor,) = read_header(tmp_path / "file")
    layout = packed_layout(matrix.shape, "bfloat16", multiplies_pairs=True)
    # What is not written stays as it is, and 7.0 is no value of the matrix.
    entries = Entries(np.full(layout.array_shape, 7, BFLOAT16), layout)
    ((found, values),) = read_ahead([(tensor, BFLOAT16, lambda: entries)])
    assert found == tensor
    assert values is entries
    np.testing.assert_array_equal(entries.array, np.asarray(layout.pack(jnp.asarray(matrix.astype(BFLOAT16)))))


def test_only_the_rows_that_are_wanted(monkeypatch: pytest.MonkeyPatch, tensors: list[Tensor]) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 4096)
    read: list[int] = []
    fill = Tensor.fill

    def counted(tensor: Tensor, file: Any, target: np.ndarray) -> None:
        read.append(target.size)
        fill(tensor, file, target)

    tensor = next(each for each in tensors if each.shape == (200, 40))
    whole = tensor.read(np.dtype(np.float32))
    monkeypatch.setattr(Tensor, "fill", counted)
    rows = np.zeros(200, np.bool_)
    rows[[0, 1, 7, 199]] = rows[50:150] = True
    ((_, values),) = read_ahead([(tensor, np.dtype(np.float32), rows)])
    assert isinstance(values, np.ndarray)
    np.testing.assert_array_equal(values[rows], whole[rows])
    assert sum(read) == 104 * 40 * 4


class Watch:
    """The bytes read so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self._changed = threading.Condition()
        read_into = Tensor.read_into

        def watched(tensor: Tensor, flat: np.ndarray, begin: int) -> None:
            read_into(tensor, flat, begin)
            with self._changed:
                self.names.add(tensor.name)
                self._changed.notify_all()

        monkeypatch.setattr(Tensor, "read_into", watched)

    def wait_for(self, name: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: name in self.names, timeout=60)


def test_the_next_are_read_while_one_is_in_use_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    save_file({f"tensor_{i}": np.full(100, i, np.float32) for i in range(9)}, tmp_path / "file")
    watch, dtype = Watch(monkeypatch), np.dtype(np.float32)
    monkeypatch.setattr(module, "AHEAD_BYTES", 3 * 400)
    taken = read_ahead((tensor, dtype, None) for tensor in read_header(tmp_path / "file"))
    for number in range(9):
        next(taken)
        last = min(number + 3, 8)
        assert all(watch.wait_for(f"tensor_{other}") for other in range(last + 1))
        assert len(watch.names) == last + 1


def test_one_tensor_is_read_ahead_however_large(monkeypatch: pytest.MonkeyPatch, tensors: list[Tensor]) -> None:
    watch = Watch(monkeypatch)
    monkeypatch.setattr(module, "AHEAD_BYTES", 1)
    taken = read_ahead((tensor, BFLOAT16, None) for tensor in tensors)
    next(taken)
    assert watch.wait_for(tensors[1].name)


def test_an_error_reaches_whoever_takes_the_tensor(tensors: list[Tensor]) -> None:
    path = tensors[0].path
    path.write_bytes(path.read_bytes()[: tensors[-1].end - 4])
    taken: list[Any] = []
    with pytest.raises(ModelError, match=f"the file ends within tensor '{tensors[-1].name}'"):
        taken.extend(tensor for tensor, _ in read_ahead((tensor, BFLOAT16, None) for tensor in tensors))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_no_thread_stays_behind_who_stops_early(tensors: list[Tensor]) -> None:
    taken = read_ahead((tensor, BFLOAT16, None) for tensor in tensors)
    next(taken)
    assert 0 < sum(thread.name.startswith("weights") for thread in threading.enumerate()) <= THREADS
    taken.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]

"""A checkpoint that is opened once: what it reads, and how often."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxllm.models.checkpoint import checkpoint as module
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.safetensors_file import Tensor, read_header
from jaxllm.models.checkpoint.weight_files import INDEX_FILE, SINGLE_FILE
from jaxllm.models.errors import ModelError
from tests.models import small


@pytest.fixture
def headers(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose headers are read, in this order."""
    read: list[Path] = []

    def read_and_note(path: Path) -> list[Tensor]:
        read.append(path)
        return read_header(path)

    monkeypatch.setattr(module, "read_header", read_and_note)
    return read


def test_headers_are_read_once_and_when_needed(tmp_path: Path, headers: list[Path]) -> None:
    checkpoint = Checkpoint(small.save_sharded(tmp_path, 3))
    assert len(checkpoint.files) == 3
    assert not headers
    assert checkpoint.largest_dtype == "float32"
    assert headers == checkpoint.files[:1]
    names = {tensor.name for tensor in checkpoint.tensors}
    assert names == {tensor.name for file in checkpoint.files for tensor in checkpoint.tensors_in(file)}
    assert headers == checkpoint.files


def test_another_object_sees_what_has_changed(tmp_path: Path) -> None:
    save_file({"x": np.zeros(2, np.float16)}, tmp_path / SINGLE_FILE)
    before = Checkpoint(tmp_path)
    assert [tensor.shape for tensor in before.tensors] == [(2,)]
    save_file({"x": np.zeros(3, np.float16)}, tmp_path / SINGLE_FILE)
    assert [tensor.shape for tensor in before.tensors] == [(2,)]
    assert [tensor.shape for tensor in Checkpoint(tmp_path).tensors] == [(3,)]


def test_the_type_is_that_of_the_largest_tensor_with_one_of_weights(tmp_path: Path) -> None:
    sizes = {"codes": np.zeros(64, np.int8), "scales": np.zeros(8, ml_dtypes.bfloat16), "bias": np.zeros(1, np.float16)}
    save_file(sizes, tmp_path / SINGLE_FILE)
    assert Checkpoint(tmp_path).largest_dtype == "bfloat16"
    save_file({"codes": np.zeros(64, np.int8)}, tmp_path / SINGLE_FILE)
    assert Checkpoint(tmp_path).largest_dtype is None
    (tmp_path / SINGLE_FILE).write_bytes(b"broken")
    assert Checkpoint(tmp_path).largest_dtype is None


def test_a_folder_without_weights(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.largest_dtype is None
    for _ in range(2):
        with pytest.raises(ModelError, match=f"has neither {SINGLE_FILE} nor {INDEX_FILE}"):
            _ = checkpoint.tensors

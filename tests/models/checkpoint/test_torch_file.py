"""Checkpoints that PyTorch wrote: the same tensors without PyTorch, and nothing run that is in them."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import numpy as np
import pytest
import torch
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint import torch_file
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.checkpoint.safetensors_file import DTYPES
from jaxllm.models.checkpoint.torch_file import StridedTensor, read_torch_file
from jaxllm.models.checkpoint.weight_files import SINGLE_FILE, TORCH_FILE, TORCH_INDEX, weight_files
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from tests.models import small

F32 = np.dtype(np.float32)


def state_dict() -> dict[str, Any]:
    """Tensors of every type and place that checkpoints have."""
    whole = torch.arange(24.0).reshape(2, 3, 4) + 0.5
    matrix = whole[0].clone()
    return {
        "whole": whole,
        "part": whole[:, 1:, :],
        "permuted": whole.permute(2, 0, 1),
        "transposed": matrix.t(),
        "repeated": torch.ones(3, 1).expand(3, 5),
        "of one row": matrix.as_strided((1, 4, 3), (2**62, 1, 4)),
        "same": matrix,
        "parameter": torch.nn.Parameter(matrix),
        "half": matrix.half(),
        "bfloat16": matrix.bfloat16()[1],
        "double": matrix.double(),
        "scalar": torch.tensor(7.5),
        "empty": torch.zeros(0, 3),
        "mask": torch.ones(3, dtype=torch.bool),
    }


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_of_every_kind(tmp_path: Path, protocol: int) -> None:
    expected = state_dict()
    torch.save(expected, tmp_path / "x.bin", pickle_protocol=protocol)
    tensors = {tensor.name: tensor for tensor in read_torch_file(tmp_path / "x.bin")}
    assert tensors.keys() == expected.keys()
    assert {name for name in tensors if isinstance(tensors[name], StridedTensor)} == {
        "part",
        "permuted",
        "transposed",
        "repeated",
        "of one row",
    }
    assert tensors.pop("mask").dtype == "BOOL"
    for name, tensor in tensors.items():
        wanted = expected[name].detach().float().numpy()
        np.testing.assert_array_equal(tensor.read(F32), wanted, name)
        if tensor.shape and tensor.shape[0]:
            np.testing.assert_array_equal(tensor.row(tensor.shape[0] - 1).astype(F32), wanted[-1], name)
    some = np.empty(5, np.float32)
    tensors["permuted"].read_into(some, 7)
    np.testing.assert_array_equal(some, expected["permuted"].reshape(-1)[7:12].numpy())


def test_a_modules_own_state_dict(tmp_path: Path) -> None:
    # With the attribute `_metadata`, which the pickle sets on the dictionary.
    module = torch.nn.Linear(3, 2)
    torch.save(module.state_dict(), tmp_path / "x.bin")
    tensors = {tensor.name: tensor.read(F32) for tensor in read_torch_file(tmp_path / "x.bin")}
    np.testing.assert_array_equal(tensors["weight"], module.weight.detach().numpy())
    np.testing.assert_array_equal(tensors["bias"], module.bias.detach().numpy())


def to_torch(folder: Path, shards: int = 1) -> None:
    """Replace the safetensors in a folder."""
    tensors = {name: torch.from_numpy(array) for name, array in load_file(folder / SINGLE_FILE).items()}
    (folder / SINGLE_FILE).unlink()
    if shards == 1:
        torch.save(tensors, folder / TORCH_FILE)
        return
    where = {name: f"pytorch_model-{index % shards}.bin" for index, name in enumerate(tensors)}
    for file in set(where.values()):
        torch.save({name: tensor for name, tensor in tensors.items() if where[name] == file}, folder / file)
    (folder / TORCH_INDEX).write_text(json.dumps({"weight_map": where}))


def parameters(folder: Path, load_format: str = "auto") -> dict[Any, jax.Array]:
    model = load_model(open_weights(folder, load_format), small.MODEL, ForwardOptions(stack="scan"), "float32")
    return {path: variable.get_raw_value() for path, variable in nnx.to_flat_state(nnx.split(model)[1])}


@pytest.mark.parametrize("shards", [1, 3])
def test_a_model_is_the_same(tmp_path: Path, shards: int) -> None:
    small.save(tmp_path)
    expected, dtype = parameters(tmp_path), read_config(tmp_path).dtype
    to_torch(tmp_path, shards)
    found = parameters(tmp_path)
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(np.asarray(found[path]), np.asarray(array), str(path))
    assert read_config(tmp_path).dtype == dtype
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor .*; load format 'auto' reads pytorch_model"):
        parameters(tmp_path, "safetensors")


def test_safetensors_come_first(tmp_path: Path) -> None:
    small.save(tmp_path)
    (tmp_path / TORCH_FILE).write_bytes(b"broken")
    assert weight_files(tmp_path) == [tmp_path / SINGLE_FILE]


def test_an_index_names_only_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / TORCH_INDEX).write_text('{"weight_map": {"x": "../secret.bin"}}')
    with pytest.raises(ModelError, match=r"'\.\./secret\.bin' is not the name of a file in the same folder"):
        weight_files(folder)


@pytest.mark.parametrize("kinds", [["bin", "safetensors"], ["bin"]])
def test_the_hub_is_asked_for_them_only_without_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    # There is no hub here: this is what it has, and what it gives for patterns.
    names = ["config.json", "onnx/pytorch_model.bin", TORCH_FILE]
    names += [SINGLE_FILE] if "safetensors" in kinds else []

    def download(model: str, *, allow_patterns: list[str], ignore_patterns: list[str], **_: Any) -> str:
        for name in names:
            fits = [any(fnmatchcase(name, pattern) for pattern in some) for some in (allow_patterns, ignore_patterns)]
            if fits == [True, False]:
                (tmp_path / name).write_bytes(b"")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    find_model("somebody/model")
    wanted = {"config.json", "model.safetensors" if "safetensors" in kinds else TORCH_FILE}
    assert {path.name for path in tmp_path.iterdir()} == wanted


def test_layers_in_folders_and_files_of_their_own_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyLate and BGE-M3 have them; copies in other types of numbers stay where they are."""
    wanted = {SINGLE_FILE, "1_Dense/model.safetensors", "2_Dense/model.safetensors", "colbert_linear.pt"}
    asked: list[str] = []

    def download(model: str, *, allow_patterns: list[str], ignore_patterns: list[str], **_: Any) -> str:
        for name in (*wanted, "fp16/model.safetensors", "onnx/model.onnx"):
            fits = [any(fnmatchcase(name, pattern) for pattern in some) for some in (allow_patterns, ignore_patterns)]
            if fits == [True, False]:
                asked.append(name)
        (tmp_path / SINGLE_FILE).write_bytes(b"")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    find_model("somebody/model")
    assert set(asked) == wanted


class Call:
    """Something whose pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


class Stored(tuple[Any, ...]):
    """The references of a pickle to data outside it."""

    __slots__ = ()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return tuple(value) if isinstance(value, Stored) else None


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, 2).dump(value)
    return buffer.getvalue()


def tensor(
    offset: Any = 0, shape: Any = (2, 3), strides: Any = (3, 1), size: Any = 6, key: Any = "0", kind: Any = None
) -> Call:
    """A tensor as PyTorch pickles it, of a storage with 24 bytes."""
    storage = Stored(("storage", kind or torch.FloatStorage, key, "cpu", size))
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, strides, False, {})


def archive(
    path: Path, value: Any = None, *, raw: bytes | None = None, order: str = "little", kind: int = zipfile.ZIP_STORED
) -> Path:
    """A file as `torch.save` writes it."""
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("x/data.pkl", pickled(value) if raw is None else raw)
        file.writestr("x/byteorder", order)
        file.writestr("x/data/0", np.arange(6, dtype=np.float32).tobytes())
    return path


def test_an_archive_of_ours_is_read(tmp_path: Path) -> None:
    (found,) = read_torch_file(archive(tmp_path / "x.bin", {"a": tensor()}))
    np.testing.assert_array_equal(found.read(F32), np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": tensor(offset=1)}, r"shape \[2, 3\] exceeds its storage of 6 values"),
        ({"a": tensor(strides=(4, 1))}, "exceeds its storage"),
        ({"a": tensor(shape=(2**40, 2**40))}, "exceeds its storage"),
        ({"a": tensor(shape=(0, 2**60), strides=(1, 1))}, "not a valid array shape"),
        ({"a": tensor(offset=-1)}, "not a tensor"),
        ({"a": tensor(strides=(3, -1))}, "not a tensor"),
        ({"a": tensor(shape=(2, 3.0))}, "not a tensor"),
        ({"a": tensor(shape=(2,))}, "strides do not match its axes"),
        ({"a": tensor(shape=(1,) * 99, strides=(0,) * 99)}, "not a tensor"),
        ({"a": tensor(size=7)}, "storage '0' has 24 bytes for 7 values"),
        ({"a": tensor(size=-6)}, "not a storage"),
        ({"a": tensor(kind=torch.HalfStorage)}, "storage '0' has 24 bytes for 6 values"),
        ({"a": tensor(kind=torch.UntypedStorage)}, "'torch.storage.UntypedStorage' does not belong in a state dict"),
        ({"a": tensor(key="../../x")}, "storage '../../x' is missing from the archive"),
        ({"a": tensor(key="1")}, "storage '1' is missing"),
        ({"a": {"b": tensor()}}, "'a' is not a tensor"),
        ({1: tensor()}, "'1' is not a tensor"),
        ({(1, 2): tensor()}, "keys that are neither strings nor numbers"),
        ([tensor()], "instruction EMPTY_LIST does not belong in a state dict"),
        (tensor(), "a dictionary of tensors"),
    ],
)
def test_what_is_not_a_state_dict_of_tensors(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_torch_file(archive(tmp_path / "x.bin", value))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "pickle exhausted"),
        (b"\x80\x02}q\x00.", "^$"),
        (b"\x80\x02R.", "nothing on the stack"),
        (b"\x80\x02u.", "no mark on the stack"),
        (b"\x80\x02h\x05.", "no 5 in the memo"),
        (b"\x80\x02}b.", "custom state"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", "a dictionary of tensors"),
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "invalid pickle"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.", "invalid pickle"),
        (b"\x80\x02" + b")\x85" * 50_000 + b".", "a dictionary of tensors"),
        (b"\x80\x04" + b")" + b"\x85" * 50_000 + b"\x8c\x01a\x93.", "not belong in a state dict"),
        (b"\x80\x02}" + b")" + b"\x85" * 50_000 + b"Ns.", "neither strings nor numbers"),
    ],
)
def test_broken_and_hostile_pickles(tmp_path: Path, raw: bytes, message: str) -> None:
    path = archive(tmp_path / "x.bin", raw=raw)
    if message == "^$":
        assert read_torch_file(path) == []
        return
    with pytest.raises(ModelError, match=message):
        read_torch_file(path)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    sign = tmp_path / "sign"
    raw = pickle.dumps({"a": Call(os.mkdir, str(sign))}, protocol)
    with pytest.raises(
        ModelError, match=r"posix\.mkdir' does not belong in a state dict|instruction .* does not belong"
    ):
        read_torch_file(archive(tmp_path / "x.bin", raw=raw))
    assert not sign.exists()


def test_other_archives_and_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, good = tmp_path / "x.bin", {"a": tensor()}

    def fails(message: str) -> None:
        with pytest.raises(ModelError, match=message):
            read_torch_file(path)

    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    fails(r"format of PyTorch before 1\.6, which is not supported; .*torch\.load\(FILE, weights_only=True\)")
    path.write_bytes(b"something else")
    fails("not a zip archive, which is not supported")
    path.unlink()
    fails("cannot read it")
    archive(path, good, order="big")
    fails("big-endian")
    archive(path, good, kind=zipfile.ZIP_DEFLATED)
    fails(r"'x/data\.pkl' is compressed or encrypted")
    with zipfile.ZipFile(archive(path, good), "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("x/data/0", b"")
    fails("two entries of the archive have the same name")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/model.json", b"")
    fails(r"the archive has no data\.pkl")
    archive(path, good)
    whole = path.read_bytes()
    for end in range(4, len(whole), 29):
        path.write_bytes(whole[:end])
        fails("not a zip archive, or truncated")
    path.write_bytes(whole)
    monkeypatch.setattr(torch_file, "MAX_PICKLE_BYTES", 10)
    fails("its pickle has .* bytes, more than the 10 allowed")
    monkeypatch.setattr(torch_file, "MAX_DIRECTORY_BYTES", 50)
    fails("directory has more than 50 bytes")


def test_storages_that_overlap(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.bin", "w") as file:
        file.writestr("x/data.pkl", pickled({"a": tensor(), "b": tensor(key="1")}))
        file.writestr("x/data/0", bytes(24))
        file.filelist.append(file.filelist[-1].__class__("x/data/1"))
        for name in ("header_offset", "file_size", "compress_size", "CRC"):
            setattr(file.filelist[-1], name, getattr(file.filelist[-2], name))
    with pytest.raises(ModelError, match="two storages overlap"):
        read_torch_file(tmp_path / "x.bin")


@cache
def whole_file(path: Path) -> bytes:
    torch.save(state_dict(), path)
    return path.read_bytes()


# pickletools decodes strings of protocol 0, whose escapes may have become unknown ones.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_give_tensors_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.bin"
    changed = bytearray(whole_file(path))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    try:
        tensors = read_torch_file(path)
    except ModelError:
        return
    for found in tensors:
        if found.dtype != "BOOL" and found.dtype in DTYPES:
            assert found.read(F32).shape == found.shape

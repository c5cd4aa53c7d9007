"""GGUF files that lie are errors that name the key or the tensor, before anything large is made."""

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxllm.models.checkpoint import made_folder
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.gguf.file import MAX_KEYS, MAX_STRINGS, read_gguf
from tests.models.quantization.gguf_files import add, close

KEYS: dict[str, Any] = {
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def save(
    path: Path, *, architecture: str = "llama", names: tuple[str, ...] = ("token_embd.weight",), **keys: Any
) -> Path:
    """A file with matrices of zeros in Q8_0."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**KEYS, **keys}.items():
        if value is not None:
            add(writer, key, value)
    for name in names:
        shape = (2, 24, 34) if "_exps" in name else (48, 34)
        writer.add_tensor(name, np.zeros(shape, np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    close(writer)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return save(tmp_path_factory.mktemp("good") / "good.gguf").read_bytes()


def test_every_truncation_is_an_error(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "short.gguf"
    for size in [*range(0, len(good) - 1700, 29), len(good) - 1600, len(good) - 33]:
        path.write_bytes(good[:size])
        with pytest.raises(ModelError, match=r"short\.gguf"):
            read_gguf(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_damage_is_an_error_or_none(tmp_path: Path, good: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(good)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(ModelError):
        read_gguf(path)


def header(version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tensor(name: str = "a", sizes: tuple[int, ...] = (32,), kind: int = 8, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


HUGE = 2**62
LIES = {
    "version": (header(version=4), "version 4"),
    "order of bytes": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "number of tensors": (header(tensors=HUGE), f"claims {HUGE} tensors"),
    "number of keys": (header(keys=HUGE), f"claims {HUGE} keys"),
    "length of a key": (header(keys=1) + struct.pack("<QQQ", HUGE, 0, 0), "key number 0 has a string"),
    "length of a string": (header(keys=1) + string("k") + struct.pack("<IQQ", 8, HUGE, 0), "key 'k' has a string of"),
    "length of an array": (header(keys=1) + string("k") + struct.pack("<IIQ", 9, 4, HUGE), "'k' claims .* numbers"),
    "strings in an array": (header(keys=1) + string("k") + struct.pack("<IIQ", 9, 8, HUGE), "'k' claims .* strings"),
    "an array of arrays": (header(keys=1) + string("k") + struct.pack("<IIQ", 9, 9, 1), "'k' is an array of type 9"),
    "more strings than are read": (
        header(keys=1) + string("k") + struct.pack("<IIQ", 9, 8, MAX_STRINGS + 1) + bytes(8 * MAX_STRINGS + 8),
        f"'k' has {MAX_STRINGS + 1} strings",
    ),
    "more keys than are read": (header(keys=MAX_KEYS + 1) + bytes(13 * MAX_KEYS + 13), f"has {MAX_KEYS + 1} keys"),
    "a name": (header(tensors=1) + tensor("a" * 2000), "has a name of 2000 characters"),
    "a type of values": (header(keys=1) + string("k") + struct.pack("<IQ", 77, 0), "'k' has a value of type 77"),
    "a key that is there twice": (header(keys=2) + (string("k") + struct.pack("<IB", 0, 1)) * 2, "'k' occurs twice"),
    "text": (header(keys=1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(16), "not UTF-8"),
    "alignment": (
        header(keys=1) + string("general.alignment") + struct.pack("<II", 4, 0),
        "general.alignment' must be a power of two",
    ),
    "dimensions": (header(tensors=1) + tensor(sizes=(1,) * 9), "tensor 'a' has 9 dimensions"),
    "no size": (header(tensors=1) + tensor(sizes=(0, 4)), r"tensor 'a' has shape \[4, 0\]"),
    "a size": (header(tensors=1) + tensor(sizes=(HUGE, HUGE)), "tensor 'a' ends at byte .*truncated"),
    "a row": (header(tensors=1) + tensor(sizes=(33,)), "multiples of the block size 32"),
    "a type": (header(tensors=1) + tensor(kind=16), "tensor 'a' has type IQ2_XXS, which is not supported"),
    "a type nobody knows": (header(tensors=1) + tensor(kind=99), "tensor 'a' has type 99"),
    "place": (header(tensors=1) + tensor(offset=HUGE), "tensor 'a' ends at byte"),
    "a place between": (header(tensors=1) + tensor(offset=1), "not a multiple of the alignment"),
    "one place for two": (header(tensors=2) + tensor("a") + tensor("b") + bytes(99), "tensor 'b' overlaps"),
    "one name for two": (header(tensors=2) + tensor() + tensor(offset=64) + bytes(200), "tensor 'a' occurs twice"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_named(tmp_path: Path, name: str) -> None:
    content, message = LIES[name]
    path = tmp_path / "lie.gguf"
    path.write_bytes(content + bytes(8))
    tracemalloc.start()
    with pytest.raises(ModelError, match=message):
        read_gguf(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_string_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.write(header(keys=1) + string("k") + struct.pack("<IQ", 8, 2**33))
        file.truncate(2**34)
    with pytest.raises(ModelError, match="'k' has a string of 8589934592 bytes"):
        read_gguf(path)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no size": ({"llama.embedding_length": None}, "'llama.embedding_length' is missing"),
    "a text for a number": ({"llama.block_count": "two"}, "'llama.block_count' must be an integer"),
    "no heads": ({"llama.attention.head_count": 0}, "'llama.attention.head_count' must be positive"),
    "heads of each layer": ({"llama.attention.head_count": [2, 4]}, "the same for all layers"),
    "too many layers": ({"llama.block_count": 10**9}, "num_hidden_layers"),
    "no number": ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "a finite number"),
    "an unknown option": ({"llama.attention.surprise": 1}, "'llama.attention.surprise' = 1 is unknown"),
    "a rope": ({"llama.rope.scaling.type": "spiral"}, "'llama.rope.scaling.type' must be none, linear"),
    "part of a head": ({"llama.rope.dimension_count": 8}, "'llama.rope.dimension_count' must be the size of a head"),
    "an end": ({"tokenizer.ggml.eos_token_id": "end"}, "'tokenizer.ggml.eos_token_id' must be a token id"),
    "an architecture": ({"architecture": "qwen2x"}, "'qwen2x', which is not supported in GGUF; the nearest .* qwen2"),
    "no embedding": ({"names": ("output.weight",)}, "the matrix 'token_embd.weight' is missing"),
    "a tensor": (
        {"names": ("token_embd.weight", "blk.0.attn_spam.weight")},
        "'blk.0.attn_spam.weight' does not belong",
    ),
    "experts": (
        {
            "names": ("token_embd.weight", "blk.0.ffn_gate_exps.weight"),
            "llama.expert_count": 4,
            "llama.expert_used_count": 1,
        },
        "'blk.0.ffn_gate_exps.weight' has 2 experts, but the model has 4",
    ),
    "rows of heads": (
        {"names": ("token_embd.weight", "blk.0.attn_q.weight"), "llama.attention.head_count": 7},
        "'blk.0.attn_q.weight' has 48 rows, which 7 heads do not divide",
    ),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_metadata_is_named(tmp_path: Path, name: str) -> None:
    options, message = WRONG[name]
    path = save(tmp_path / "wrong.gguf", **options)
    with pytest.raises(ModelError, match=message):
        read_config(find_model(str(path)))
    assert not list((tmp_path / "cache").rglob(".new-*"))


@pytest.mark.usefixtures("cache")
def test_a_folder_of_one_file_stands_for_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = save(home / "one.gguf")
    shorter: dict[str, Any] = {"llama.context_length": 32}
    found = find_model(str(path))
    assert found == find_model(str(home)) == find_model(str(path))
    assert (found / "model.gguf").resolve() == path
    save(home / "two.gguf")
    with pytest.raises(ModelError, match="several models"):
        find_model(str(home))
    save(path, **shorter)
    assert find_model(str(path)) != found, "another file at the same place is another model"


@pytest.mark.usefixtures("cache")
def test_folders_that_were_used_longest_ago_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets of links are neither counted nor removed, nor are files that a process uses for long."""
    files = [save(tmp_path / f"{name}.gguf", names=("token_embd.weight", "output.weight")) for name in "abc"]
    with monkeypatch.context() as patch:
        patch.setattr(made_folder, "hold", lambda folder: None)
        folders = [find_model(str(file)) for file in files[:2]]
    one = sum(file.lstat().st_size for file in folders[0].iterdir())
    assert 2 * one < files[0].stat().st_size
    monkeypatch.setattr(made_folder, "LARGEST_CACHE", 2 * one + one // 2)
    assert find_model(str(files[0])) == folders[0]
    for folder in folders:
        os.utime(folder, (0, 0))
    assert find_model(str(files[2])).is_dir()
    assert [folder.is_dir() for folder in folders] == [True, False]
    assert all(file.is_file() for file in files)


@pytest.mark.usefixtures("cache")
def test_parts_are_read_together(tmp_path: Path) -> None:
    two: dict[str, Any] = {"split.tensors.count": 2}
    first, second = (tmp_path / f"a-0000{number}-of-00002.gguf" for number in (1, 2))
    save(first, **two)
    with pytest.raises(ModelError, match=r"1 of its 2 parts are missing: a-00002-of-00002\.gguf"):
        find_model(str(first))
    save(second, names=("output.weight",))
    assert not read_config(find_model(str(second))).tie_word_embeddings
    save(second, names=("token_embd.weight",))
    with pytest.raises(ModelError, match="have 2 tensors, 1 by name"):
        find_model(str(first))

"""Parameters are saved as they lie on the devices, and read again; and what is wrong with a saved state is said."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxllm.config import EngineConfig
from jaxllm.config.progress import silent
from jaxllm.errors import RequestError
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.load import open_engine_weights
from jaxllm.executor.weights.sharded import load as loading
from jaxllm.executor.weights.sharded import save as saving
from jaxllm.executor.weights.sharded.manifest import Manifest, read_manifest
from jaxllm.executor.weights.sharded.save import save_state
from jaxllm.models.errors import ModelError
from tests.models import small

MANIFEST = "sharded_state.json"
Stages = list[tuple[ResolvedConfig, tuple[jax.Array, ...]]]
MIXTURE = {
    **small.CONFIG,
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 16,
}


def resolved(folder: Path | str, **options: Any) -> ResolvedConfig:
    return resolve_config(EngineConfig.from_options({"model": str(folder), **options}))


def loaded(folder: Path | str, **options: Any) -> Stages:
    found = resolved(folder, **options)
    load_weights = open_engine_weights(found)
    return [(part, load_weights(part, silent)) for part in found.stage_configs]


def saved_again(folder: Path, **options: Any) -> Stages:
    return loaded(folder, load_format="sharded_state", **options)


def same(one: Stages, other: Stages) -> None:
    assert len(one) == len(other)
    for (_, ours), (_, theirs) in zip(one, other, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert np.array_equal(np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with experts, random."""
    folder = tmp_path_factory.mktemp("mixture")
    (folder / "config.json").write_text(json.dumps(MIXTURE))
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of a small model, and its saved state, in two parts."""
    folder = tmp_path_factory.mktemp("original")
    (folder / "checkpoint").mkdir()
    save_state(loaded(small.save(folder / "checkpoint"), tensor_parallel_size=2), str(folder / "state"))
    return folder


@pytest.fixture
def state(original: Path, tmp_path: Path) -> Path:
    """A copy of that state, with the checkpoint alongside it."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path / "state"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantization": "int8"},
        {"quantization": "int4", "layer_stack": "scan"},
        {"quantization": "fp8", "dtype": "bfloat16"},
        {"tensor_parallel_size": 2, "quantization": "int8"},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        {"mesh": "data=2,model=2"},
    ],
    ids=str,
)
def test_what_is_read_is_what_was_saved(options: dict[str, Any], tmp_path: Path) -> None:
    before = loaded("demo", **options)
    save_state(before, str(tmp_path))
    after = saved_again(tmp_path, **options)
    same(before, after)
    for (_, ours), (_, theirs) in zip(before, after, strict=True):
        assert [leaf.sharding for leaf in ours] == [leaf.sharding for leaf in theirs]


def test_stages_share_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(loaded("demo", pipeline_parallel_size=2), str(tmp_path))
    read: list[Path] = []

    def read_and_note(folder: Path) -> Manifest:
        read.append(folder)
        return read_manifest(folder)

    monkeypatch.setattr(loading, "read_manifest", read_and_note)
    assert len(saved_again(tmp_path, pipeline_parallel_size=2)) == 2
    assert read == [tmp_path]


def test_experts_on_other_devices(mixture: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"load_format": "dummy"}
    before = loaded(mixture, mesh="data=2,model=2", enable_expert_parallel=True, **options)
    save_state(before, str(tmp_path))
    # All four devices have experts, and two of them everything else.
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    after = saved_again(tmp_path, tensor_parallel_size=2, enable_expert_parallel=True)
    same(before, after)
    save_state(after, str(tmp_path))
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    same(before, saved_again(tmp_path, mesh="data=2,model=2", enable_expert_parallel=True))


def test_others_can_read_the_files(tmp_path: Path) -> None:
    ((part, leaves),) = loaded("demo")
    save_state([(part, leaves)], str(tmp_path), "weights-{rank:02d}-{part}.safetensors", max_size=2**20)
    files = sorted(tmp_path.glob("weights-00-*.safetensors"))
    assert len(files) > 2
    theirs = {name: values for file in files for name, values in load_file(file).items()}
    names = json.loads((tmp_path / MANIFEST).read_text())["stages"][0]["arrays"]
    assert set(names) == set(theirs)
    for name, leaf in zip(names, leaves, strict=True):
        np.testing.assert_array_equal(theirs[name], np.asarray(leaf))


def test_a_state_is_replaced_at_the_end(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved_again(state, tensor_parallel_size=2)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    whole = loaded(tmp_path / "checkpoint")
    with monkeypatch.context() as patch:
        patch.setattr(saving, "_manifest", full)
        with pytest.raises(RequestError, match="No space left on device"):
            save_state(whole, str(state))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 2, 7))
        with pytest.raises(RequestError, match=r"\d+ bytes are needed, but only 7 are free"):
            save_state(whole, str(state))
    same(before, saved_again(state, tensor_parallel_size=2))
    assert not list(state.glob(".unfinished*"))
    # As a process leaves it that was killed.
    (state / ".unfinished-0").mkdir()
    save_state(whole, str(state))
    assert not list(state.glob(".unfinished*"))
    assert [file.name for file in state.glob("*.safetensors")] == ["model-rank-0-part-0.safetensors"]
    same(whole, saved_again(state))


def test_a_save_that_is_interrupted_looks_like_none(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved_again(state, tensor_parallel_size=2)
    renamed: list[Path] = []
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(target)
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_state(before, str(state))
    assert renamed
    with pytest.raises(ModelError, match="not a saved state"):
        saved_again(state, tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"pattern": "../{rank}-{part}.safetensors"}, "is not the name of a .safetensors file"),
        ({"pattern": "model-{rank}.bin"}, "is not the name of a .safetensors file"),
        ({"pattern": "model-{part}.safetensors"}, "2 files would have the name 'model-0.safetensors'"),
        ({"pattern": "model-{rank.__class__}.safetensors"}, "{rank.__class__} is unknown"),
        ({"pattern": "model-{rank"}, "pattern="),
        ({"pattern": 3}, "must be a string"),
        ({"max_size": 0}, "max_size=0"),
        ({"max_size": "5GB"}, "max_size='5GB'"),
    ],
)
def test_what_saving_refuses(arguments: dict[str, Any], match: str, state: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=match):
        save_state(saved_again(state, tensor_parallel_size=2), str(tmp_path / "other"), **arguments)
    assert not (tmp_path / "other").exists()


def test_where_nothing_can_be_saved(state: Path, tmp_path: Path) -> None:
    weights = loaded(tmp_path / "checkpoint")
    (tmp_path / "file").write_text("")
    for path, match in (("file", "File exists"), ("checkpoint", "the model's own folder"), ("a\0b", "null")):
        with pytest.raises(RequestError, match=match):
            save_state(weights, str(tmp_path / path))
    descriptor = os.open(state, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(RequestError, match="another process is saving to this folder"):
        save_state(weights, str(state))
    os.close(descriptor)


def _first(manifest: Any) -> Any:
    return manifest["stages"][0]["arrays"]["layers.each.0.attention.output.weight"]


def _edit(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        change(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return edit


def _config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return edit


def _file(change: Callable[[bytearray], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model-rank-1-part-0.safetensors"
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    return edit


def _without_tensor(folder: Path) -> None:
    path = folder / "model-rank-1-part-0.safetensors"
    save_file({"something": np.zeros(3, np.float32)}, path)


def _fifo(folder: Path) -> None:
    (folder / "model-rank-1-part-0.safetensors").unlink()
    os.mkfifo(folder / "model-rank-1-part-0.safetensors")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "not a saved state: sharded_state.json is missing"),
    "not JSON": (lambda folder: (folder / MANIFEST).write_text("{"), "sharded_state.json: invalid"),
    "no UTF-8": (lambda folder: (folder / MANIFEST).write_bytes(b'{"format": "\xff"}'), "invalid"),
    "nested": (lambda folder: (folder / MANIFEST).write_text("[" * 100_000), "invalid"),
    "bundle": (_edit(lambda it: it.update(format="jaxllm executables")), "its format is 'jaxllm executables'"),
    "next version": (_edit(lambda it: it.update(version=2)), "format version 2"),
    "other program": (_edit(lambda it: it.update(jaxllm="0.0.1")), "saved by jaxllm 0.0.1"),
    "unknown field": (_edit(lambda it: it.update(code="import os")), "unknown field `code`"),
    "outside": (
        _edit(lambda it: _first(it)["parts"][0].update(file="../../etc/x.safetensors")),
        "'../../etc/x.safetensors' is not the name",
    ),
    "absolute": (_edit(lambda it: _first(it)["parts"][0].update(file="/etc/passwd")), "'/etc/passwd' is not the name"),
    "huge": (_edit(lambda it: _first(it).update(shape=[2**61, 2**61])), "parts have 256 of"),
    "huge part": (_edit(lambda it: _first(it)["parts"][0].update(shape=[2**61, 2**61])), "ends outside the array"),
    "negative": (_edit(lambda it: _first(it)["parts"][0].update(start=[-1, 0])), "Expected `int` >= 0"),
    "overlap": (_edit(lambda it: _first(it)["parts"][1].update(start=[0, 0])), "two parts overlap"),
    "empty part": (_edit(lambda it: _first(it)["parts"][0].update(shape=[0, 8])), "a part is empty"),
    "axes": (_edit(lambda it: _first(it)["parts"][0].update(start=[0])), "a different number of axes"),
    "lost part": (_edit(lambda it: _first(it)["parts"].pop()), "parts have 128 of 256 values"),
    "lost array": (_edit(lambda it: it["stages"][0]["arrays"].pop("norm.weight")), "'norm.weight' is missing"),
    "unknown array": (
        _edit(lambda it: it["stages"][0]["arrays"].update(new=_first(it))),
        "array 'new' is unknown",
    ),
    "other type": (_edit(lambda it: _first(it).update(dtype="int8")), r"is int8 \[16, 16\], not float32"),
    "lost stage": (_edit(lambda it: it.update(stages=[])), "no stage has layers 0 to 1"),
    "checksums": (_edit(lambda it: _first(it)["parts"][0].update(checksums=[])), "has 0 checksums of it"),
    "norm": (_config(rms_norm_eps=0.1), "config.json .* has different values of 'layers', 'norm'"),
    "larger": (_config(intermediate_size=24), "config.json"),
    "lost file": (lambda folder: (folder / "model-rank-1-part-0.safetensors").unlink(), "rank-1-part-0.*missing"),
    "pipe": (_fifo, "missing or not a file"),
    "truncated": (_file(lambda data: data.__delitem__(slice(-8, None))), "truncated"),
    "header": (_file(lambda data: data.__setitem__(slice(0, 8), b"\xff" * 8)), "not a safetensors file"),
    "flipped bit": (_file(lambda data: data.__setitem__(-1, data[-1] ^ 1)), "tensor '.*' has a wrong checksum"),
    "other tensors": (_without_tensor, "tensor '.*' is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_named(name: str, state: Path) -> None:
    damage, match = DAMAGES[name]
    damage(state)
    with pytest.raises(ModelError, match=match):
        saved_again(state, tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "tensor_parallel_size was 2 but is 1"),
        ({"tensor_parallel_size": 4}, "tensor_parallel_size was 2 but is 4"),
        ({"tensor_parallel_size": 2, "dtype": "bfloat16"}, 'dtype was "float32" but is "bfloat16"'),
        ({"tensor_parallel_size": 2, "quantization": "int8"}, 'quantization was null but is "int8"'),
        ({"tensor_parallel_size": 2, "layer_stack": "scan"}, 'layer_stack was "loop" but is "scan"'),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "pipeline_parallel_size was 1 but is 2"),
    ],
    ids=str,
)
def test_other_options_are_named(options: dict[str, Any], match: str, state: Path) -> None:
    with pytest.raises(ModelError, match=match):
        saved_again(state, **options)


def test_an_ordinary_load_says_what_the_folder_is(state: Path) -> None:
    with pytest.raises(ModelError, match="load_format='sharded_state'"):
        loaded(state, tensor_parallel_size=2)

"""Weights are written once, and mapped afterwards: the same bits, whatever happens to the files."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxllm.config import EngineConfig
from jaxllm.config.progress import silent
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights import cached, load
from jaxllm.executor.weights.load import open_engine_weights
from jaxllm.models.checkpoint.mapped_file import lies_in_file, mapped_ranges
from jaxllm.models.checkpoint.weight_files import SINGLE_FILE
from jaxllm.models.errors import ModelError
from tests.conftest import RunPython
from tests.models import small

DATA, MANIFEST = "model-rank-0-part-0.safetensors", "sharded_state.json"
Leaves = list[tuple[jax.Array, ...]]

LOAD = """
import logging, sys
from jaxllm.config import EngineConfig
from jaxllm.config.progress import silent
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.weights.load import open_engine_weights
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
resolved = resolve_config(EngineConfig.from_options({"model": sys.argv[1], "weight_cache_size": 1}))
leaves = open_engine_weights(resolved)(resolved, silent)
print("sum", sum(float(abs(leaf).sum()) for leaf in leaves))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process and those it starts cache weights."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jaxllm" / "weights"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    return small.save(tmp_path / "checkpoint")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[ResolvedConfig]:
    """The engines whose checkpoint has been read, and packed."""
    found: list[ResolvedConfig] = []
    load_leaves = load.load_leaves

    def note(source: Any, resolved: ResolvedConfig, *others: Any) -> tuple[jax.Array, ...]:
        found.append(resolved)
        return load_leaves(source, resolved, *others)

    monkeypatch.setattr(load, "load_leaves", note)
    return found


def loaded(folder: Path | str, size: float = 1, **options: Any) -> Leaves:
    config = EngineConfig.from_options({"model": str(folder), "weight_cache_size": size, **options})
    resolved = resolve_config(config)
    load_weights = open_engine_weights(resolved)
    return [load_weights(part, silent) for part in resolved.stage_configs]


def same(one: Leaves, other: Leaves) -> bool:
    pairs = [pair for parts in zip(one, other, strict=True) for pair in zip(*parts, strict=True)]
    assert all((x.dtype, x.shape, x.sharding) == (y.dtype, y.shape, y.sharding) for x, y in pairs)
    return all(np.array_equal(np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8)) for x, y in pairs)


def mapped(leaves: Leaves) -> bool:
    """Whether all lie in files, but for those that no processor could use there."""
    ranges = mapped_ranges()
    return all(lies_in_file(leaf, ranges) for part in leaves for leaf in part if leaf.nbytes % 64 == 0)


def folder_in(home: Path) -> Path:
    (only,) = home.iterdir()
    return only


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16", "layer_stack": "scan"},
        {"quantization": "int4"},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ],
    ids=str,
)
def test_the_second_start_maps_what_the_first_one_wrote(
    options: dict[str, Any], home: Path, read: list[ResolvedConfig]
) -> None:
    plain = loaded("demo", size=0, **options)
    assert not home.exists()
    first = loaded("demo", **options)
    assert len(read) == 2 * len(plain)
    second = loaded("demo", **options)
    assert len(read) == 2 * len(plain)
    assert len(list(home.iterdir())) == len(plain)
    assert same(plain, first)
    assert same(plain, second)
    assert mapped(first)
    assert mapped(second)
    assert not mapped(plain)


def test_a_drafter_and_a_tower_are_mapped_as_well(home: Path, read: list[ResolvedConfig]) -> None:
    plain = loaded("demo-vision", size=0)
    assert same(plain, loaded("demo-vision"))
    read.clear()
    again = loaded("demo-vision")
    assert not read
    assert same(plain, again)
    assert mapped(again)


def test_what_else_is_cached_elsewhere(checkpoint: Path, home: Path, read: list[ResolvedConfig]) -> None:
    loaded(checkpoint)
    before = (checkpoint / SINGLE_FILE).stat()
    loaded(checkpoint, dtype="bfloat16")
    loaded(checkpoint, quantization="int8")
    assert len(read) == len(list(home.iterdir())) == 3
    # Other values of the same size and time, as in an image of a container.
    values = small.tensors()
    values["model.norm.weight"] += 1
    small.save(checkpoint, values)
    os.utime(checkpoint / SINGLE_FILE, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = (checkpoint / SINGLE_FILE).stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert same(loaded(checkpoint), loaded(checkpoint, size=0))
    assert len(read) == 5
    # The same values of another time, as those of a container that is made again.
    os.utime(checkpoint / SINGLE_FILE)
    loaded(checkpoint)
    assert len(read) == 5
    assert len(list(home.iterdir())) == 4


def _truncate(folder: Path) -> None:
    data = (folder / DATA).read_bytes()
    (folder / DATA).unlink()  # Others may have it mapped.
    (folder / DATA).write_bytes(data[:-1])


def _replace(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["jaxllm"] = "0.0.0"
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _replace,
        lambda folder: (folder / DATA).unlink(),
        lambda folder: (folder / MANIFEST).write_bytes(b"{"),
        lambda folder: shutil.copy(folder / MANIFEST, folder / DATA),
    ],
    ids=["a byte less", "of another version", "without data", "half a manifest", "something else"],
)
def test_what_is_broken_is_written_again(
    damage: Callable[[Path], object],
    checkpoint: Path,
    home: Path,
    read: list[ResolvedConfig],
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = loaded(checkpoint, size=0)
    loaded(checkpoint)
    damage(folder_in(home))
    read.clear()
    assert same(plain, loaded(checkpoint))
    assert len(read) == 1
    assert "cannot be used and is written again" in caplog.text
    again = loaded(checkpoint)
    assert len(read) == 1
    assert same(plain, again)
    assert mapped(again)


def test_a_checkpoint_that_is_broken_is_still_an_error(checkpoint: Path, home: Path) -> None:
    (checkpoint / SINGLE_FILE).unlink()
    with pytest.raises(ModelError, match="has neither"):
        loaded(checkpoint)
    (checkpoint / SINGLE_FILE).write_bytes(b"?")
    with pytest.raises(ModelError, match="truncated"):
        loaded(checkpoint)
    assert [file.name for file in folder_in(home).iterdir()] == ["lock"]


def test_the_cache_has_a_limit(checkpoint: Path, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = loaded(checkpoint, size=0)
    assert same(plain, loaded(checkpoint, size=1e-6))
    assert "weight_cache_size allows 0.0 GiB" in caplog.text
    assert [file.name for file in folder_in(home).iterdir()] == ["lock"]
    loaded(checkpoint)
    (folder,) = home.iterdir()
    taken = sum(file.stat().st_size for file in folder.iterdir())
    # This process holds what it has mapped.
    loaded(checkpoint, size=taken / 2**30, dtype="bfloat16")
    assert "of weight_cache_size are in use" in caplog.text
    assert mapped(loaded(checkpoint))


def test_what_nobody_holds_makes_room(checkpoint: Path, home: Path) -> None:
    old = home / "old"
    old.mkdir(parents=True)
    (old / DATA).write_bytes(bytes(10000))
    os.utime(old, (0, 0))
    assert mapped(loaded(checkpoint))
    assert old.exists()
    taken = sum(file.stat().st_size for folder in home.iterdir() for file in folder.iterdir())
    assert mapped(loaded(checkpoint, size=taken / 2**30, dtype="bfloat16"))
    assert not old.exists()


def test_a_disk_that_is_full_costs_time_only(checkpoint: Path, home: Path, run_python: RunPython) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    done = run_python("-c", limit + LOAD, str(checkpoint))
    assert done.returncode == 0, done.stderr
    assert "cannot cache" in done.stdout
    assert "File too large" in done.stdout
    assert [file.name for file in folder_in(home).iterdir()] == ["lock"]
    plain = sum(float(abs(leaf).sum()) for part in loaded(checkpoint, size=0) for leaf in part)
    assert done.stdout.splitlines()[-1] == f"sum {plain}"


def test_a_folder_that_cannot_be_made_costs_time_only(
    checkpoint: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.parent.mkdir(parents=True)
    home.write_bytes(b"")
    assert same(loaded(checkpoint, size=0), loaded(checkpoint))
    assert "cannot cache weights in" in caplog.text


def test_a_kill_while_it_writes_leaves_nothing_that_looks_whole(
    checkpoint: Path, home: Path, run_python: RunPython, read: list[ResolvedConfig]
) -> None:
    kill = """
import os, signal
from jaxllm.executor.weights.sharded import save
save._publish = lambda new, folder: os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python("-c", kill + LOAD, str(checkpoint)).returncode == -signal.SIGKILL
    assert [file.name for file in folder_in(home).glob(".unfinished-*/*.safetensors")] == [DATA]
    assert mapped(loaded(checkpoint))
    assert len(read) == 1
    assert sorted(file.name for file in folder_in(home).iterdir()) == ["lock", DATA, MANIFEST]


@pytest.mark.slow
def test_one_of_several_processes_writes(checkpoint: Path, home: Path) -> None:
    # The first one to read does so until the other one waits.
    slow = """
import time
from jaxllm.executor.weights import load
read = load.load_leaves
load.load_leaves = lambda *given: (print("reads", flush=True), time.sleep(2), read(*given))[-1]
"""
    command = [sys.executable, "-c", slow + LOAD, str(checkpoint)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(output.count("reads\n") for output in outputs) == 1
    assert all("weights are mapped from" in output for output in outputs)
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert mapped(loaded(checkpoint))


def test_a_process_that_is_stuck_is_not_waited_for_forever(
    checkpoint: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded(checkpoint)
    folder = folder_in(home)
    (folder / MANIFEST).unlink()
    monkeypatch.setattr(cached, "_WAIT_SECONDS", 0)
    with cached._locked(folder, silent) as is_locked:
        assert is_locked
        assert same(loaded(checkpoint), loaded(checkpoint, size=0))
    assert "another process has been packing the same weights" in caplog.text
    assert not (folder / MANIFEST).exists()


def test_what_cannot_be_cached_is_said(checkpoint: Path, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert same(loaded(checkpoint, load_format="dummy"), loaded(checkpoint, size=0, load_format="dummy"))
    assert "weight_cache_size has no effect: load_format is 'dummy'" in caplog.text
    assert not home.exists()

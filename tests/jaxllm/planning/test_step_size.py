"""Steps are as large as a platform's defaults say, where that fits: here for TPUs that are not there."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.planning.fit import fit, fit_here
from jaxllm.planning.memory import compile_step
from jaxllm.planning.step_size import step_bytes
from jaxllm.planning.target import TargetDevices, find_target
from tests.jaxllm.planning.llama import write_model
from tests.jaxllm.planning.test_fit import here

GIB = 2**30
LARGEST, MIDDLE, SMALLEST = (256, 8192), (128, 4096), (64, 2048)


@pytest.fixture(scope="module")
def absent() -> dict[str, TargetDevices]:
    pytest.importorskip("libtpu")
    return {f"{chip}-{size}": find_target(chip, None, size) for chip, size in (("v5e", 4), ("v6e", 1))}


def size_of(resolved: ResolvedConfig) -> tuple[int, int]:
    return resolved.max_num_seqs, resolved.max_num_batched_tokens


def fitted(target: TargetDevices, model: str, **options: Any) -> ResolvedConfig:
    return fit(resolve_config(EngineConfig.from_options({"model": model, **options}), target.devices), target)


def test_large_steps_where_they_fit(absent: dict[str, TargetDevices], tmp_path: Path) -> None:
    model = write_model(tmp_path)
    assert size_of(fitted(absent["v6e-1"], model)) == LARGEST
    assert size_of(fitted(absent["v5e-4"], model)) == LARGEST


def test_options_win(absent: dict[str, TargetDevices], tmp_path: Path) -> None:
    model = write_model(tmp_path)
    assert size_of(fitted(absent["v6e-1"], model, max_num_seqs=7)) == (7, 8192)
    assert size_of(fitted(absent["v6e-1"], model, max_num_batched_tokens=100)) == (256, 100)
    # Neither is reduced, whatever it takes.
    asked = {"max_num_seqs": 512, "max_num_batched_tokens": 65_536}
    assert size_of(fitted(absent["v6e-1"], model, **asked)) == (512, 65_536)


def test_small_steps_on_cpu_and_for_pooling() -> None:
    config = EngineConfig.from_options({"model": "demo"})
    assert size_of(resolve_config(config)) == (64, 512)


def test_pooling_models_keep_small_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = EngineConfig.from_options({"model": write_model(tmp_path)})
    here(monkeypatch, "gpu", 1, 40 * GIB)
    assert size_of(resolve_config(config, runner="pooling")) == SMALLEST
    assert size_of(resolve_config(config)) == LARGEST


@pytest.mark.parametrize(
    ("limit", "options", "expected"),
    [
        (40 * GIB, {}, LARGEST),
        (23 * GIB, {}, MIDDLE),
        (18 * GIB, {}, SMALLEST),
        # A longest request takes 1 GiB.
        (17 * GIB, {"max_model_len": 8192}, SMALLEST),
    ],
    ids=str,
)
def test_smaller_steps_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    limit: int,
    options: dict[str, Any],
    expected: tuple[int, int],
) -> None:
    """15 GiB of weights on GPUs."""
    config = EngineConfig.from_options({"model": write_model(tmp_path), **options})
    here(monkeypatch, "gpu", 1, limit)
    with caplog.at_level(logging.INFO):
        found = fit_here(resolve_config(config))
    assert size_of(found) == expected
    said = f"memory is short: steps have up to {expected[0]} requests and {expected[1]} tokens instead of 256 and 8192"
    assert (said in caplog.text) == (expected != LARGEST)


def test_the_length_that_is_asked_for_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """131,072 tokens take 16 GiB."""
    model = write_model(tmp_path, max_position_embeddings=131_072)
    config = EngineConfig.from_options({"model": model, "max_model_len": 131_072})
    here(monkeypatch, "gpu", 1, 65 * GIB // 2)
    assert size_of(fit_here(resolve_config(config))) == MIDDLE
    here(monkeypatch, "gpu", 1, 34 * GIB)
    assert size_of(fit_here(resolve_config(config))) == LARGEST


def test_a_bundle_brings_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = {"max_num_seqs": 128, "max_num_batched_tokens": 4096}
    manifest = {"format": "jaxllm executables", "version": 1, "num_pages": 9, "temporary_bytes": 0, "executables": {}}
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "engine": engine}))
    options = {"model": write_model(tmp_path / "model"), "executables": str(tmp_path)}
    here(monkeypatch, "gpu", 1, 40 * GIB)
    assert size_of(fit_here(resolve_config(EngineConfig.from_options(options)))) == MIDDLE
    asked = EngineConfig.from_options({**options, "max_num_seqs": 5})
    assert size_of(fit_here(resolve_config(asked))) == (5, 8192), "which the bundle then rejects"


@pytest.mark.slow
def test_a_step_takes_no_more_than_estimated(tmp_path: Path) -> None:
    pytest.importorskip("libtpu")
    target = find_target("v6e", None, 1)
    model = write_model(tmp_path, num_hidden_layers=2)
    resolved = resolve_config(EngineConfig.from_options({"model": model}), target.devices)
    assert size_of(resolved) == LARGEST
    assert CHIPS["v6e"] is target.chip
    compiled = compile_step(resolved, Bucket(8192, 256))
    assert step_bytes(resolved) / 4 < compiled.temporary_bytes < step_bytes(resolved)

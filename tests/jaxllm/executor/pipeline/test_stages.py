"""Pipeline parallel: how layers are cut into stages, what each loads, and what has no stages."""

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError, RequestError
from jaxllm.executor import bundles
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.memory.memory import CPU_SHARE
from jaxllm.executor.pipeline.stages import balanced
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint import checkpoint
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.safetensors_file import Tensor, read_header
from jaxllm.models.errors import ModelError
from tests.e2e.driving import make_engine, request
from tests.e2e.driving import run as drive
from tests.models import small
from tests.models.every_family import FAMILIES
from tests.models.quantization.checkpoints import deepseek_v3, llama, qwen3_moe, save
from tests.models.quantization.formats import FORMATS
from tests.thinned import thinned


def resolved_in(stages: int, **options: Any) -> ResolvedConfig:
    return resolve_config(EngineConfig.from_options({"pipeline_parallel_size": stages} | options))


@given(st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(0, 9), st.integers(0, 9))
def test_the_largest_stage_is_as_small_as_can_be(
    data: st.DataObject, weights: list[int], first: int, last: int
) -> None:
    count = data.draw(st.integers(1, len(weights)))

    def largest(cuts: tuple[int, ...]) -> int:
        sums = [sum(weights[start:stop]) for start, stop in pairwise((0, *cuts, len(weights)))]
        sums[0] += first
        sums[-1] += last
        return max(sums)

    found = balanced(weights, count, first=first, last=last)
    stops = tuple(stop for _, stop in found)
    assert [start for start, _ in found] == [0, *stops[:-1]]
    assert stops[-1] == len(weights)
    assert all(start < stop for start, stop in found)
    assert largest(stops[:-1]) == min(map(largest, combinations(range(1, len(weights)), count - 1)))


def test_each_stage_has_its_layers_devices_and_part_of_the_cache() -> None:
    """The demo model has four layers and a tied embedding, which is in the first stage and in the last."""
    parts = resolved_in(2, tensor_parallel_size=2).stage_configs
    devices = [device for part in parts if part.mesh is not None for device in part.mesh.devices.flat]
    assert devices == jax.devices()[:4]
    programs = [generation_programs(part, 5) for part in parts]
    assert [each.state.kv_cache.pages[0].shape[0] for each in programs] == [2, 2]
    assert [hasattr(each.state, "sampling") for each in programs] == [False, True]
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(programs[0].parameters)]
    assert not any("norm" in name and "layers" not in name for name in names)
    assert sum("embedding" in name for name in names) == 1


def test_stages_on_virtual_devices_share_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is enough for each of two stages alone is too little for both."""
    resolved = resolved_in(2)
    programs = [generation_programs(part, 5) for part in resolved.stage_configs]
    needed = [bytes_on_device((each.parameters, each.state)) for each in programs]
    monkeypatch.setattr(bundles, "cpu_free_bytes", lambda utilization: (sum(needed) + 20) * CPU_SHARE)
    bundles.check_memory(resolved, programs, 10)
    for part in programs:
        bundles.check_memory(resolved, [part], 40)
    with pytest.raises(CapacityError, match="compile them again"):
        bundles.check_memory(resolved, programs, 40)


def _loaded_bytes(part: ResolvedConfig, folder: Path) -> int:
    read = [0]
    load_model(
        Checkpoint(folder), part.model, part.forward, jnp.float32, progress=lambda done, total: read.append(total)
    )
    return read[-1]


def test_a_stage_reads_only_its_tensors(tmp_path: Path, demo_folder: Path) -> None:
    whole = resolve_config(EngineConfig.from_options({}))
    parts = resolved_in(3).stage_configs
    table = whole.model.vocab_size * whole.model.hidden_size * 2
    read = [_loaded_bytes(part, demo_folder) for part in parts]
    everything = _loaded_bytes(whole, demo_folder)
    assert sum(read) in (everything + table, everything + 2 * table)  # bfloat16 or float32
    tensors = load_file(demo_folder / "model.safetensors")
    (tmp_path / "config.json").write_text((demo_folder / "config.json").read_text())
    save_file(tensors | {"model.layers.0.extra.weight": np.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"unexpected tensor in the checkpoint: model\.layers\.0\.extra"):
        load_model(Checkpoint(tmp_path), parts[0].model, parts[0].forward, jnp.float32)
    load_model(Checkpoint(tmp_path), parts[1].model, parts[1].forward, jnp.float32)


def test_a_start_reads_each_header_once_for_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.save_sharded(tmp_path, 3)
    # Without a type, resolving the configuration looks for one in the first file.
    (tmp_path / "config.json").write_text(json.dumps({**small.CONFIG, "torch_dtype": "float32"}))
    read: list[str] = []

    def read_and_note(path: Path) -> list[Tensor]:
        read.append(path.name)
        return read_header(path)

    monkeypatch.setattr(checkpoint, "read_header", read_and_note)
    engine = make_engine(model=str(tmp_path), pipeline_parallel_size=2, max_model_len=32)
    engine.close()
    assert sorted(read) == [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline_parallel_size": 5}, "the model has 4 layers"),
        ({"mesh": "data=2"}, "data shards support one stage"),
        ({"tensor_parallel_size": 8}, "stages of 8 devices need 16, but there are 8|there are 8 devices"),
    ],
)
def test_what_has_no_stages(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved_in(stages=options.pop("pipeline_parallel_size", 2), **options)


@pytest.mark.parametrize(("family", "message"), [("mamba2", "recurrent layers"), ("gemma3n", "support one stage")])
def test_models_without_stages(tmp_path: Path, family: str, message: str) -> None:
    FAMILIES[family].save(tmp_path)
    with pytest.raises(ConfigError, match=message):
        resolved_in(2, model=str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "name", "options"),
    thinned(
        [(llama, "GPTQ desc_act", {"kv_cache_dtype": "int8"})],
        [
            (qwen3_moe, "W4A16 in groups", {}),
            (llama, "int8 per tensor, static", {"kv_cache_dtype": "fp8", "tensor_parallel_size": 2}),
            (deepseek_v3, "fp8 in blocks", {}),
        ],
    ),
)
def test_quantised_models_and_caches(tmp_path: Path, make: Any, name: str, options: dict[str, Any]) -> None:
    """A stage reads scales, zeros and orders of its own layers only; tokens are those of one stage."""
    save(tmp_path, make(), FORMATS[name])
    parts = resolved_in(2, model=str(tmp_path), max_model_len=48, **options).stage_configs
    read = [_loaded_bytes(part, tmp_path) for part in parts]
    assert max(read) < (tmp_path / "model.safetensors").stat().st_size
    found = []
    params = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    for stages in (1, 2):
        engine = make_engine(
            model=str(tmp_path), max_model_len=48, max_num_batched_tokens=8, max_num_seqs=4, block_size=4,
            dtype="float32", num_gpu_blocks_override=40, pipeline_parallel_size=stages, enforce_eager=False, **options,
        )  # fmt: skip
        prompts = [range(5, 9 + 7 * index) for index in range(3)]
        answers = drive(engine, [request(index, each, **params) for index, each in enumerate(prompts)])
        found.append({name: answer.token_ids for name, answer in answers.items()})
        engine.close()
    assert found[0] == found[1]


def test_a_request_is_in_one_step_under_way() -> None:
    """As many steps are under way as there are stages, each of other requests; they have what they had alone."""
    options: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 32, "block_size": 4}
    engine = make_engine(**options, pipeline_parallel_size=2, num_gpu_blocks_override=40, enforce_eager=False)
    assert [(stage.start, stage.stop, stage.num_devices) for stage in engine.info.stages] == [(0, 2, 1), (2, 4, 1)]
    pages = engine.runner.calls.state.kv_cache.pages[0]
    assert {stage.cache_bytes for stage in engine.info.stages} == {pages.nbytes}
    with pytest.raises(RequestError, match="max_model_len"):
        engine.add_request(request("long", range(5, 37), temperature=0))
    before = engine.stats().stage_seconds
    assert before == (0.0, 0.0), "what warms up is no work"
    engine.add_request(request("gone", range(5, 9), temperature=0, max_tokens=12, ignore_eos=True))
    while len(engine._under_way) < engine._depth and engine._start():
        pass
    engine.abort_request("gone")
    assert [output.finish_reason for output in engine.step()] == ["abort"]
    for index in range(4):
        engine.add_request(request(index, range(5, 9), temperature=0, max_tokens=12, ignore_eos=True))
    tokens: dict[str, list[int]] = {}
    most = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
        while len(engine._under_way) < engine._depth and engine._start():
            pass
        sampling = [set(step.plan.slots[step.plan.samples].tolist()) for _, step in engine._under_way]
        assert len(set().union(*sampling)) == sum(map(len, sampling))
        most = max(most, len(sampling))
    assert most == 2
    assert len(set(map(tuple, tokens.values()))) == 1
    assert engine.runner.watch.count == 0
    worked = [last - first for first, last in zip(before, engine.stats().stage_seconds, strict=True)]
    assert len(worked) == 2
    assert all(0 < seconds < 600 for seconds in worked)
    engine.close()

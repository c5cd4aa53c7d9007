"""The start of an engine whose memory is an accelerator's. The devices are those of the CPU, and say what we like."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor import largest_step
from jaxllm.executor.build import build_runner
from jaxllm.executor.largest_step import bytes_beside_cache
from jaxllm.executor.resolve import resolve_config
from jaxllm.hosts.leader import LeaderGroup
from tests.conftest import RunPython
from tests.e2e.images.qwen import FAMILIES, save

STARTS = """
import json, sys
from dataclasses import replace
from types import SimpleNamespace
import jax
from jaxllm.config import EngineConfig
from jaxllm.executor import build
from jaxllm.executor.resolve import resolve_config

lowered = []
def listen(event, duration, **details):
    if event.endswith("jaxpr_to_mlir_module_duration") and "step_" in str(details.get("fun_name")):
        lowered.append(details["fun_name"].removeprefix("jit(").removesuffix(")"))
jax.monitoring.register_event_duration_secs_listener(listen)

def start(in_use):
    stats = {"bytes_limit": 600 << 20, "bytes_in_use": in_use}
    chip = SimpleNamespace(memory_stats=lambda: stats, device_kind="test chip", platform="gpu")
    build.local_devices_of = lambda _: (chip,)
    lowered.clear()
    options = {"max_num_batched_tokens": 8, "max_num_seqs": 256, "max_model_len": 2048, "layer_stack": "scan",
               "attention_backend": "xla", "optimization_level": 0, "compilation_cache_dir": sys.argv[1]}
    resolved = replace(resolve_config(EngineConfig.from_options(options)), platform="gpu")
    _, runner, pages = build.build_runner(resolved)
    runner.close()
    return {"pages": pages, "lowered": sorted(lowered)}

print(json.dumps([start(100 << 20), start((100 << 20) + 54321), start((98 << 20) + 777), start(300 << 20)]))
"""


@pytest.mark.slow
def test_a_slightly_different_free_memory_changes_nothing(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", STARTS, str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, less, more, other = json.loads(done.stdout.splitlines()[-1])
    assert first["lowered"] == ["step_1_tokens", "step_8_tokens", "step_8_tokens"], "the largest first with few pages"
    assert less["pages"] == more["pages"] == first["pages"]
    assert less["lowered"] == more["lowered"] == []
    assert other["pages"] < first["pages"]
    assert other["lowered"] == ["step_1_tokens", "step_8_tokens"], "what a step needs is known"


def test_what_the_compiler_said_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"max_num_batched_tokens": 8, "attention_backend": "xla", "optimization_level": 0, "layer_stack": "scan"}
    resolved = resolve_config(EngineConfig.from_options(options))
    found = bytes_beside_cache(resolved, tmp_path)
    assert found > 0
    assert bytes_beside_cache(resolved, None) == found
    monkeypatch.setattr(largest_step, "_ask_compiler", lambda *_: pytest.fail("asked again"))
    assert bytes_beside_cache(resolved, tmp_path) == found


def test_a_large_image_may_need_more_than_a_step(tmp_path: Path) -> None:
    save(FAMILIES["qwen2_vl"], tmp_path)
    options = {"model": str(tmp_path), "max_num_batched_tokens": 8, "max_model_len": 512, "optimization_level": 0}
    small, large = (
        bytes_beside_cache(resolve_config(EngineConfig.from_options({**options, "max_image_patches": most})), None)
        for most in (64, 2048)
    )
    # Of the gated product alone, in float32.
    assert large - small > 1984 * 64 * 4


class Noting(LeaderGroup):
    """The first process of an engine of one: notes what it agrees on, and what it tells."""

    is_leader = True

    def __init__(self) -> None:
        self.said: list[str] = []

    def gather(self, stage: str, value: Any) -> list[Any]:
        self.said.append(stage)
        return [value]

    def publish(self, name: str, arrays: Sequence[Any]) -> None:
        self.said.append(name)


def test_several_processes_run_nothing_before_all_have_compiled() -> None:
    """Devices wait for those of other processes for seconds, and compiling may take minutes where nothing is cached."""
    options = {"max_num_batched_tokens": 8, "attention_backend": "xla", "compilation_cache_dir": "",
               "layer_stack": "scan"}  # fmt: skip
    group = Noting()
    _, runner, _ = build_runner(
        resolve_config(EngineConfig.from_options({**options, "optimization_level": 0, "max_num_seqs": 4})), group=group
    )
    runner.close()
    assert group.said[:4] == ["free memory", "KV pages", "engine", "ready to run"]
    assert group.said[4] == "empty_state"

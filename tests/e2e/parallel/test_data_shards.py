"""Mixtures of experts give the same tokens with data shards, whose devices share the experts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunPython
from tests.models.every_family import FAMILIES

SCRIPT = str(Path(__file__).with_name("generate_on_meshes.py"))
SIZES = {"moe_intermediate_size": 24, "n_group": 1, "topk_group": 1, "num_hidden_layers": 2}


def run(run_python: RunPython, folder: Path, *parallel: str) -> list[dict[str, Any]]:
    done = run_python(SCRIPT, str(folder), *parallel, env={"PYTHONPATH": "."}, devices=8, timeout=900)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: list[dict[str, Any]]) -> None:
    """All like the first, on one device, where some requests are preempted and some prompts cached."""
    one, *others = found
    for each in found:
        assert (each["preempted"], each["cached"]) == (one["preempted"], one["cached"]), each["parallel"]
        assert each["beams"] == one["beams"]
        assert each["compilations"] == 0
    assert all(each["prefix_hits"] > 0 for each in found)
    assert one["preemptions"] > 0
    assert others[0]["preemptions"] > 0


@pytest.mark.slow
def test_experts_of_all_shards(run_python: RunPython, tmp_path: Path) -> None:
    """Latent attention, whose cache is whole on each device of a shard: two layers, the second with experts."""
    FAMILIES["deepseek_v3"].save(tmp_path, **SIZES)
    check(run(run_python, tmp_path, "model=1", "data=2,model=2,ep"))


@pytest.mark.slow
def test_caches_of_8_bits(run_python: RunPython, tmp_path: Path) -> None:
    """Each shard has pages of its own, and the scales of what is in them."""
    FAMILIES["llama"].save(tmp_path)
    check(run(run_python, tmp_path, "model=1,kv=int8", "data=2,model=2,kv=int8"))

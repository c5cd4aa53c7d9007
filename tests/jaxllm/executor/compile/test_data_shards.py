"""Data shards exchange only tokens of experts in a compiled step."""

import re
from collections import Counter
from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.resolve import resolve_config
from tests.models.every_family import FAMILIES

COLLECTIVE = re.compile(r"= \S+ (all-reduce|all-gather|reduce-scatter|all-to-all)\(.*replica_groups=(.+?), \w+=")
OVER_DATA = ("{{0,2},{1,3}}", "mesh['data'=2,'model'=2] {'data'}")
"""Groups of devices, as XLA writes them before JAX 0.12 and since then."""
STEP = {"max_num_seqs": 2, "max_num_batched_tokens": 4, "max_model_len": 16, "block_size": 4}


def config(folder: Path, mesh: str) -> EngineConfig:
    return EngineConfig.from_options({"model": str(folder), "mesh": mesh, "enable_expert_parallel": True, **STEP})


def test_only_experts_ask_for_tokens_of_other_shards(tmp_path: Path) -> None:
    """Two layers, the second with experts."""
    FAMILIES["deepseek_v3"].save(tmp_path, moe_intermediate_size=24, n_group=1, topk_group=1, num_hidden_layers=2)
    programs = generation_programs(resolve_config(config(tmp_path, "data=2,model=2")), 9)
    text = programs.step(programs.buckets.largest).compile({"xla_backend_optimization_level": 0}).as_text() or ""
    over_data = Counter(kind for kind, groups in COLLECTIVE.findall(text) if groups in OVER_DATA)
    # Tokens, which experts they choose and with what weights; what a step must do for any shard; the sums of experts.
    assert over_data == {"all-gather": 3, "all-reduce": 1, "reduce-scatter": 1}


def test_what_has_no_data_shards(tmp_path: Path) -> None:
    FAMILIES["mamba2"].save(tmp_path)
    with pytest.raises(ConfigError, match="mesh: data=2: recurrent layers support one data shard"):
        resolve_config(config(tmp_path, "data=2"))


def test_experts_must_divide_over_all_shards(tmp_path: Path) -> None:
    FAMILIES["deepseek_v3"].save(tmp_path, moe_intermediate_size=24, n_group=1, topk_group=1, num_hidden_layers=2)
    message = "in each of 3 data shards, which share the experts, cannot divide the model evenly: .* 8 experts"
    with pytest.raises(ConfigError, match=message):
        resolve_config(config(tmp_path, "data=3"))

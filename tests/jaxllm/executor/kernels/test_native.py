"""Kernels for CPUs are begun before anything that calls them is traced, so that they lie in the engine's cache."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor import resolved as resolved_module
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.kernels.native import begin_kernels
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.checkpoint.find_model import DEMO
from jaxllm.pallas_kernels.cpu_common import targets
from jaxllm.pallas_kernels.cpu_common.processor import Processor
from tests.conftest import RunPython

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "vocab_size": 48, "hidden_size": 64, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "dtype": "float32",
}  # fmt: skip

ORDINARY = """
import sys
import jaxllm.engine.engine
import jaxllm.serving.llm.llm
from jaxllm.config import EngineConfig
from jaxllm.pallas_kernels.cpu_common import targets
from jaxllm.executor.kernels.native import begin_kernels
from jaxllm.executor.resolve import resolve_config
targets._open = lambda *_: None
begin_kernels(resolve_config(EngineConfig.from_options({})), None)
seldom = ("quantiz", "weight_type", "latent", "gpu", "ring_mlp", "segment_attention.api", "recurrence.run",
          "serving.pooling", "hosts.group", "sharded", "beam.policy", "bundle.manifest", "layers.experts",
          "layers.recurrent", "layers.altup", "layers.hyper", "layers.token_input", "grouped_matmul", "kv.shards", "executor.pipeline",
          "processors", "planning", "weights.store", "complexity")
print(*(name for name in sys.modules if name.startswith("jaxllm.") and any(part in name for part in seldom)))
"""


class Noting(dict[str, Any]):
    """In the place of the kernels that XLA knows: notes which are asked for, and says that it knows them."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return True


def saved(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def resolve(model: str, **options: Any) -> ResolvedConfig:
    small = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "max_model_len": 64}
    return resolve_config(EngineConfig.from_options({"model": model, **small, **options}))


@pytest.mark.parametrize(
    ("experts", "options"),
    [
        (False, {}),
        (False, {"quantization": "int8"}),
        (True, {"quantization": "int4"}),
        (True, {"dtype": "bfloat16"}),
        (False, {"dtype": "bfloat16", "bfloat16_products": "widened"}),
    ],
    ids=str,
)
def test_all_kernels_of_a_step_are_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experts: bool, options: dict[str, Any]
) -> None:
    resolved = resolve(saved(tmp_path, MIXTRAL) if experts else DEMO, **options)
    begun, called = Noting(), Noting()
    monkeypatch.setattr(targets, "_begun", begun)
    begin_kernels(resolved, None)
    monkeypatch.setattr(targets, "_begun", called)
    programs = generation_programs(resolved, 8)
    programs.step(programs.buckets.all[-1]).lower()
    assert called.asked <= begun.asked
    found = {name for name in called.asked if "quantized" in name}
    assert found == {name for name in begun.asked if "quantized" in name}
    assert len(found) == {None: 0, "int8": 1, "int4": 2}[options.get("quantization")]


def test_starts_of_ordinary_models_import_nothing_of_others(run_python: RunPython) -> None:
    done = run_python("-c", ORDINARY)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()


@pytest.mark.parametrize("is_able", [False, True])
@pytest.mark.parametrize("asked", ["auto", "widened"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_where_bfloat16_is_multiplied_as_it_is(
    monkeypatch: pytest.MonkeyPatch, dtype: str, asked: str, is_able: bool
) -> None:
    """With a processor that can, unless it is turned off, or XLA multiplies."""
    monkeypatch.setattr(resolved_module, "host_processor", lambda: Processor(True, True, multiplies_bfloat16=is_able))
    found = resolve(DEMO, dtype=dtype, bfloat16_products=asked).forward
    assert found.multiplies_pairs == (dtype == "bfloat16" and asked == "auto" and is_able)
    assert found.attention == ("cpu_pairs" if found.multiplies_pairs else "cpu")
    by_xla = resolve(DEMO, dtype=dtype, bfloat16_products=asked, attention_backend="xla").forward
    assert (by_xla.attention, by_xla.multiplies_pairs) == ("xla", False)
    # A cache of another type is widened.
    assert resolve(DEMO, dtype=dtype, bfloat16_products=asked, kv_cache_dtype="fp8").forward.attention == "cpu"

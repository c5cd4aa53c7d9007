"""`jaxllm plan` and `jaxllm compile` for TPUs that are not there, with their real compiler."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm import LLM
from jaxllm.bundle.manifest import read_file, read_manifest
from jaxllm.errors import ConfigError
from jaxllm.serving.cli import main as cli
from tests.conftest import RunPython
from tests.jaxllm.planning.llama import LLAMA_3_8B_WEIGHTS, write_model

# Small buckets: the large ones take most of the time, and show nothing more here.
SMALL = ["--max-num-batched-tokens", "8"]


def plan(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert cli.main(["plan", *flags, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def check_memory(found: dict[str, Any], gib: int, parts: int) -> None:
    """What a plan says of devices of so much memory that each have a part of the model."""
    memory = found["memory"]
    assert memory["weights"] == pytest.approx(LLAMA_3_8B_WEIGHTS / parts, rel=0.001)
    assert memory["temporaries"] < 0.05 * memory["weights"]
    assert sum(size for name, size in memory.items() if name != "total") == memory["total"] == gib * 2**30
    assert memory["free"] == pytest.approx(0.1 * memory["total"], rel=0.01)
    # 128 KiB for each token: key and value, 8 heads of 128, 32 layers, bfloat16.
    assert memory["kv_cache"] == (found["kv_tokens"] + 64) * 131072 // parts
    assert all(step["compile_seconds"] > 0 for step in found["steps"])


@pytest.mark.exhaustive
def test_llama_on_one_v6e(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, write_model(tmp_path / "llama"), "--device", "v6e", *SMALL)
    assert (found["fits"], found["device"], found["dtype"]) == (True, "v6e:1x1", "bfloat16")
    check_memory(found, 32, 1)


def test_llama_needs_two_v5e(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "llama")
    alone = plan(capsys, model, "--device", "v5e", *SMALL)
    assert not alone["fits"]
    assert alone["advice"] == ["--quantization int8", "--tensor-parallel-size 2 --topology 2x2"]
    together = plan(capsys, model, "--device", "v5e", *SMALL, "--tp", "2", "--topology", "2x2")
    assert (together["fits"], together["num_devices"]) == (True, 2)
    check_memory(together, 16, 2)


def test_weights_that_the_compiler_itself_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, write_model(tmp_path / "llama", num_hidden_layers=96), "--device", "v6e", *SMALL)
    assert found["reason"] == "weights and state need 41.0 GiB on each device, but only 28.8 GiB are usable"
    assert found["advice"] == ["--quantization int8", "--tensor-parallel-size 2 --topology 2x2"]


def test_a_bundle_for_a_tpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bundle"
    flags = [
        "--device",
        "v5e",
        "--topology",
        "2x2",
        "--tp",
        "2",
        "--kv-cache-memory-bytes",
        "64M",
        "--dtype",
        "bfloat16",
    ]
    assert cli.main(["compile", "demo", "--output", str(folder), *flags, *SMALL]) == 0
    assert "10 executables" in capsys.readouterr().out
    manifest = read_manifest(folder)
    assert manifest.engine["device_kind"] == "TPU v5 lite"
    assert manifest.engine["block_size"] == 64, "the default on TPUs"
    assert manifest.engine["devices"] == [[0, 0, 0, 0], [1, 1, 0, 0]]
    assert manifest.engine["tensor_parallel_size"] == 2
    assert all(len(read_file(folder, saved)) > 10_000 for saved in manifest.executables.values())
    split = [array.split for array in manifest.executables["step_8"].call.outputs]
    assert any("model" in (axes or []) for axes in split), "the cache is split over the devices"
    with pytest.raises(ConfigError, match=r"for another engine: platform: tpu in the bundle, cpu here; device_kind"):
        LLM("demo", executables=str(folder))


PLAN_AFTER_AN_ENGINE = """
import sys
from jaxllm.executor.compile.executables import use_compilation_cache
from jaxllm.serving.cli import main as cli
use_compilation_cache(sys.argv[1])
sys.exit(cli.main(["plan", "demo", "--device", "v6e", "--max-num-batched-tokens", "8", "--json"]))
"""


def test_a_plan_leaves_the_compilation_cache_alone(tmp_path: Path, run_python: RunPython) -> None:
    """JAX cannot read what it cached for a device that is not there, and would warn of every entry."""
    done = run_python("-W", "error", "-c", PLAN_AFTER_AN_ENGINE, str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fits"]
    assert not list((tmp_path / "cache").iterdir())


def test_a_topology_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "demo", "--device", "v6e", "--topology", "3x5"]) == 2
    assert "libtpu does not support topology v6e:3x5: " in capsys.readouterr().err
    assert cli.main(["plan", "demo", "--device", "v6e", "--topology", "1x1", "--tp", "2"]) == 2
    assert "--topology 1x1: has 1 devices, but the engine needs 2" in capsys.readouterr().err

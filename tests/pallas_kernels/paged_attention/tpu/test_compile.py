"""Paged attention compiles for chips that are not there, inside a scan over layers, and never copies the cache."""

import json
import os
import subprocess
import sys

import pytest

from tests.thinned import thinned

ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "JAX_PLATFORMS": "cpu"}

CASES = {
    ("v6e", "tpu"): thinned(
        ("qwen3-32b", "gpt-oss-20b", "gemma-2-2b", "gemma-3-4b-images", "small-float32"),
        ("llama-3-8b", "llama-3-70b-tp8", "llama-3-70b-tp8-int8", "qwen3-0.6b", "llama-3.2-1b"),
    ),
    ("v5e", "tpu"): thinned(("llama-3-70b-tp8-int8",), ("llama-3-8b", "llama-3.2-1b")),
    ("tpu7x", "tpu"): thinned(("llama-3.2-1b",), ("llama-3-8b", "llama-3-70b-tp8-int8")),
    ("v4", "tpu"): ("llama-3-8b",),
    ("v5p", "tpu"): thinned((), ("llama-3-8b",)),
    # Not `small-float32`: half of a float32 cache of two heads of 80, padded to 128, is copied.
    ("v6e", "xla"): thinned(
        ("llama-3-8b", "gpt-oss-20b"),
        ("llama-3-70b-tp8", "llama-3-70b-tp8-int8", "qwen3-0.6b", "qwen3-32b", "llama-3.2-1b", "gemma-2-2b"),
    ),
}
"""Every kind of heads, of scores and of cache is compiled for one of the chips, for v5p by `scripts/test --all`."""


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "implementation"), [each for each, cases in CASES.items() if cases])
def test_compiles_without_a_copy_of_the_cache(chip: str, implementation: str) -> None:
    module = "tests.pallas_kernels.paged_attention.tpu.compile_kernels"
    environment = {**os.environ, **ENVIRONMENT, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-m", module, chip, implementation, *CASES[chip, implementation]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [result["case"] for result in results] == list(CASES[chip, implementation])
    for result in results:
        assert result["aliased"] >= result["cache"], result
        assert result["temporaries"] < 0.05 * result["cache"], result

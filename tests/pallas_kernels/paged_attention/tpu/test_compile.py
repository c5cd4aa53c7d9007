"""Paged attention compiles for chips that are not there, inside a scan over layers, and never copies the cache."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.thinned import thinned

ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "JAX_PLATFORMS": "cpu"}

CASES = thinned(
    (
        "v6e/tpu/gemma-3-4b-images",
        "v6e/xla/gpt-oss-20b",
        "v5e/tpu/llama-3-70b-tp8-int8",
        "tpu7x/tpu/gpt-oss-20b",
        "v4/tpu/llama-3-8b-merged",
    ),
    (
        # A cache of float8 is also that of `tests/benchmarks/test_tpu_quantized_steps.py`.
        *(f"v6e/tpu/{name}" for name in ("qwen3-32b", "small-float32")),
        *(f"v6e/tpu/{name}" for name in ("gpt-oss-20b", "gemma-2-2b", "llama-3-8b", "llama-3-70b-tp8")),
        *(f"v6e/tpu/{name}" for name in ("llama-3-70b-tp8-int8", "qwen3-0.6b", "llama-3.2-1b")),
        *(f"{chip}/tpu/{name}" for chip in ("v5e", "tpu7x") for name in ("llama-3-8b", "llama-3.2-1b")),
        "tpu7x/tpu/llama-3-70b-tp8-int8",
        "v5p/tpu/llama-3-8b",
        "v4/tpu/llama-3-8b",
        *(f"{chip}/tpu/llama-3-8b-merged" for chip in ("v5e", "v5p", "v6e", "tpu7x")),
        # Not `small-float32`: half of a float32 cache of two heads of 80, padded to 128, is copied.
        *(f"v6e/xla/{name}" for name in ("llama-3-8b", "llama-3-70b-tp8", "llama-3-70b-tp8-int8", "qwen3-0.6b")),
        *(f"v6e/xla/{name}" for name in ("qwen3-32b", "llama-3.2-1b", "gemma-2-2b")),
    ),
)
"""Chip, implementation and model: heads of 64, 128 and 256, every kind of scores, a cache of int8, and most chips."""


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, Any]]:
    """Bytes by case, from one process: libtpu takes seconds to start."""
    module = "tests.pallas_kernels.paged_attention.tpu.compile_kernels"
    environment = {**os.environ, **ENVIRONMENT, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-m", module, *CASES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {result["case"]: result for result in results}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_compiles_without_a_copy_of_the_cache(compiled: dict[str, dict[str, Any]], case: str) -> None:
    result = compiled[case]
    assert result["aliased"] >= result["cache"], result
    assert result["temporaries"] < 0.05 * result["cache"], result

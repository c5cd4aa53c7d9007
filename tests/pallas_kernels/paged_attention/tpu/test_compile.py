"""The TPU kernels compile for chips that are not there, inside a scan over layers, and never copy the cache."""

import json
import os
import subprocess
import sys

import pytest

ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "JAX_PLATFORMS": "cpu"}


@pytest.mark.proof
@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_compiles_without_a_copy_of_the_cache(chip: str) -> None:
    module = "tests.pallas_kernels.paged_attention.tpu.compile_kernels"
    environment = {**os.environ, **ENVIRONMENT, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-m", module, chip]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(results) == 8
    for result in results:
        assert result["aliased"] >= result["cache"], result
        assert result["temporaries"] < 0.05 * result["cache"], result

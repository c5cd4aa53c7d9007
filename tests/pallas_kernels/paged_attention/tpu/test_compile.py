"""Paged attention compiles for chips that are not there, inside a scan over layers, and never copies the cache."""

import json
import os
import subprocess
import sys

import pytest

ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "JAX_PLATFORMS": "cpu"}


USUAL = ("llama-3-8b", "llama-3-70b-tp8-int8", "llama-3.2-1b")
"""On chips other than the one that gets all: a plain cache, one of 8 bits, and two heads to a row of lanes."""

CHIPS = {"v4": USUAL[:1], "v5e": USUAL, "v5p": USUAL[:1], "v6e": (), "tpu7x": USUAL}


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "implementation"), [*((chip, "tpu") for chip in CHIPS), ("v6e", "xla")])
def test_compiles_without_a_copy_of_the_cache(chip: str, implementation: str) -> None:
    module = "tests.pallas_kernels.paged_attention.tpu.compile_kernels"
    environment = {**os.environ, **ENVIRONMENT, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-m", module, chip, implementation, *CHIPS[chip]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(results) == (len(CHIPS[chip]) or 9)
    if implementation == "xla":
        # Half of a float32 cache of two heads of 80, padded to 128, is copied; the kernel copies nothing.
        results = [result for result in results if result["case"] != "small-float32"]
    for result in results:
        assert result["aliased"] >= result["cache"], result
        assert result["temporaries"] < 0.05 * result["cache"], result

"""An engine leaves nothing in its process when it is gone."""

import json
import sys

import pytest

from tests.conftest import RunPython
from tests.e2e.text.conftest import SMALL

RECREATE = """
import gc, json, sys
import psutil
from jaxllm import LLM, SamplingParams

options = json.loads(sys.argv[1])

def make_and_use():
    llm = LLM("demo", **options)
    llm.generate(["Once upon a time"] * 8, SamplingParams(max_tokens=32), use_tqdm=False)

sizes = []
for _ in range(9):
    make_and_use()
    gc.collect()
    sizes.append(psutil.Process().memory_info().rss / 2**20)
print(json.dumps(sizes))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory means something else there")
@pytest.mark.slow
def test_a_process_that_makes_engines_again_and_again_does_not_grow(run_python: RunPython) -> None:
    done = run_python("-c", RECREATE, json.dumps({**SMALL, "max_num_batched_tokens": 512}))
    assert done.returncode == 0, done.stderr
    first, *_, last = sizes = json.loads(done.stdout.splitlines()[-1])
    assert (last - first) / 8 <= 5, f"MiB after each engine: {sizes}"

"""Quantised matrices in an engine: the same tokens however they were computed, warm starts, and little that is lost."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from jaxllm.engine.engine import Engine
from tests.conftest import RunPython
from tests.e2e.driving import make_engine, request, run

COUNT = 12
LARGE = {"max_num_seqs": 8, "max_model_len": 512, "max_num_batched_tokens": 256}
SMALL = {"max_num_seqs": 8, "max_model_len": 208, "max_num_batched_tokens": 24, "num_gpu_blocks_override": 14}
LOST = {"int8": 0.01, "int4": 0.05, "int8_w8a8": 0.01, "int8_w4a8": 0.05}
"""How much larger perplexities may be than that of float32."""

STARTS = """
import json, sys
import jax
from tests.e2e.driving import make_engine, request, run

lowered = []
def listen(event, duration, **details):
    if event.endswith("jaxpr_to_mlir_module_duration"):
        lowered.append(details["fun_name"])
jax.monitoring.register_event_duration_secs_listener(listen)
engine = make_engine(quantization="int8", compilation_cache_dir=sys.argv[1], max_num_batched_tokens=8, max_num_seqs=4,
                     max_model_len=64, num_gpu_blocks_override=20, enforce_eager=False)
started = len(lowered)
tokens = run(engine, [request(0, range(5, 25), max_tokens=6, temperature=0)])["0"].token_ids
print(json.dumps({"tokens": tokens, "steps": sum("step_" in name for name in lowered), "later": lowered[started:],
                  "numba": "numba" in sys.modules}))
engine.close()
"""


def tokens(engine: Engine, prompts: list[list[int]], indices: Iterable[int]) -> dict[str, list[int]]:
    """Greedy ones and seeded ones."""
    requests = [request(i, prompts[i], temperature=i % 2, seed=i, max_tokens=12, ignore_eos=True) for i in indices]
    return {name: answer.token_ids for name, answer in run(engine, requests).items()}


def perplexity(engine: Engine, texts: Sequence[Sequence[int]]) -> float:
    """Of all tokens of texts but the first of each."""
    requests = [request(i, text, max_tokens=1, prompt_logprobs=0) for i, text in enumerate(texts)]
    found = [each for answer in run(engine, requests).values() for each in answer.prompt_logprobs or []]
    return float(np.exp(-np.mean([each.logprob for each in found if each is not None])))


@pytest.fixture(
    scope="module",
    # Each width of weights, and each kind of products; `tests/models/test_quantized.py` has logits of every method.
    params=[
        "int8_w8a8",
        pytest.param("int4", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("int8", "int8_w4a8")),
    ],
)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def quantised(method: str) -> Iterator[Engine]:
    engine = make_engine(quantization=method, **LARGE, enforce_eager=False)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def together(quantised: Engine, prompts: list[list[int]]) -> dict[str, list[int]]:
    """All requests in one batch."""
    return tokens(quantised, prompts, range(COUNT))


def test_the_same_tokens_alone_and_with_a_prefix_from_the_cache(
    quantised: Engine, prompts: list[list[int]], together: dict[str, list[int]]
) -> None:
    hits = quantised.pages.prefix_hits
    assert tokens(quantised, prompts, range(COUNT)) == together
    assert quantised.pages.prefix_hits > hits
    for index in range(0, COUNT, 3):
        quantised.reset_prefix_cache()
        assert tokens(quantised, prompts, [index]) == {str(index): together[str(index)]}


def test_chunks_and_preemption(method: str, prompts: list[list[int]], together: dict[str, list[int]]) -> None:
    engine = make_engine(quantization=method, **SMALL)
    try:
        assert tokens(engine, prompts, range(COUNT)) == together
        assert engine.scheduler.num_preemptions > 0
    finally:
        engine.close()


def test_little_is_lost(method: str, quantised: Engine, engine: Engine, prompts: list[list[int]]) -> None:
    texts = [prompt for prompt in prompts[:40] if len(prompt) > 1]
    ordinary, found = perplexity(engine, texts), perplexity(quantised, texts)
    assert found != ordinary
    assert found < ordinary * (1 + LOST[method])


# CI has a second start in `tests/jaxllm/executor/compile/test_cached.py`, and kernels that a process keeps for the next
# one in `tests/pallas_kernels/cpu_common/test_targets.py`.
@pytest.mark.exhaustive
def test_a_warm_start_compiles_nothing(run_python: RunPython, tmp_path: Path) -> None:
    """Neither steps nor kernels, which the engine's cache has, too."""
    starts = []
    for _ in range(2):
        done = run_python("-c", STARTS, str(tmp_path / "engines"), env={"XDG_CACHE_HOME": str(tmp_path / "elsewhere")})
        assert done.returncode == 0, done.stderr
        starts.append(json.loads(done.stdout.splitlines()[-1]))
        assert "made again" not in done.stderr
    cold, warm = starts
    assert cold["tokens"] == warm["tokens"]
    assert (cold["steps"] > 0, warm["steps"]) == (True, 0)
    assert (cold["numba"], warm["numba"]) == (True, False)
    assert cold["later"] == warm["later"] == []
    assert not list((tmp_path / "elsewhere").rglob("*.o"))

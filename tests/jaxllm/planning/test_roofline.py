"""Estimates against figures worked out by hand for Llama 3 8B on one v6e: 918 TFLOP/s, 1,638 GB/s."""

from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.planning.roofline import estimate, step_work
from jaxllm.runner.buckets import Bucket
from jaxllm.runner.plan import Plan, make_plan
from tests.jaxllm.planning.llama import LLAMA_3_8B_WEIGHTS, write_model

EMBEDDING = 2 * 128256 * 4096
PAGE = 16 * 2 * 8 * 128 * 32 * 2
"""Bytes of 16 tokens: key and value, 8 heads of 128, 32 layers, bfloat16."""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(EngineConfig.from_options({"model": write_model(tmp_path / "llama"), "dtype": "bfloat16"}))


def test_one_decode_reads_the_weights(plan: Plan) -> None:
    found = estimate(plan, CHIPS["v6e"], LLAMA_3_8B_WEIGHTS, PAGE, Bucket(1, 1))
    read = LLAMA_3_8B_WEIGHTS - EMBEDDING + 1025 * PAGE / 16
    assert (found.work, found.bound) == ("decode", "memory")
    assert found.seconds == pytest.approx(read / 1.638e12)
    assert found.tokens_per_second == pytest.approx(1 / found.seconds)


def test_a_large_prefill_computes(plan: Plan) -> None:
    found = estimate(plan, CHIPS["v6e"], LLAMA_3_8B_WEIGHTS, PAGE, Bucket(2048, 64))
    matrices = (LLAMA_3_8B_WEIGHTS // 2 - 2 * 128256 * 4096 - 65 * 4096) * 2048 + 128256 * 4096
    attention = 32 * 2 * 4096 * 2048 * 2049 // 2
    assert (found.work, found.bound) == ("prefill", "compute")
    assert found.seconds == pytest.approx(2 * (matrices + attention) / 918e12)


def test_many_decodes_read_every_context(plan: Plan) -> None:
    one, many = (step_work(plan, LLAMA_3_8B_WEIGHTS, PAGE, [500] * rows, rows) for rows in (1, 64))
    assert many.bytes - one.bytes == 63 * 501 * PAGE / 16
    assert many.flops == 64 * one.flops


def test_a_window_limits_what_is_seen(tmp_path: Path) -> None:
    changes = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 100}
    folder = write_model(tmp_path / "mistral", **changes)
    plan = make_plan(EngineConfig.from_options({"model": folder, "dtype": "bfloat16"}))
    short, long = (step_work(plan, LLAMA_3_8B_WEIGHTS, PAGE, [length], 1).flops for length in (100, 4000))
    assert short == long


def test_a_tied_embedding_is_read_for_the_logits(tmp_path: Path) -> None:
    plans = [
        make_plan(EngineConfig.from_options({"model": write_model(tmp_path / str(tied), tie_word_embeddings=tied)}))
        for tied in (False, True)
    ]
    untied, tied = (step_work(plan, LLAMA_3_8B_WEIGHTS, PAGE, [1], 1).bytes for plan in plans)
    # float32 on CPU.
    assert tied - untied == 2 * EMBEDDING

"""Estimates against figures worked out by hand for Llama 3 8B on v6e: 918 TFLOP/s, 1,638 GB/s, links of 90 GB/s."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.planning.communication import communication_seconds, summed_bytes
from jaxllm.planning.links import sum_seconds
from jaxllm.planning.memory import CompiledProgram, MemoryUse
from jaxllm.planning.roofline import (
    Work,
    attention_share,
    attention_work,
    estimate,
    estimate_drafts,
    matrix_work,
)
from jaxllm.planning.staged import fullest
from tests.jaxllm.planning.llama import GPT_OSS_120B, LLAMA_3_8B_WEIGHTS, write_model

EMBEDDING = 2 * 128256 * 4096
PAGE = 16 * 2 * 8 * 128 * 32 * 2
"""Bytes of 16 tokens: key and value, 8 heads of 128, 32 layers, bfloat16."""


@pytest.fixture
def resolved(tmp_path: Path) -> ResolvedConfig:
    return resolve_config(EngineConfig.from_options({"model": write_model(tmp_path / "llama"), "dtype": "bfloat16"}))


def test_one_decode_reads_the_weights(resolved: ResolvedConfig) -> None:
    found = estimate(resolved, CHIPS["v6e"], LLAMA_3_8B_WEIGHTS, PAGE, Bucket(1, 1))
    assert (found.work, found.bound) == ("decode", "memory")
    assert found.matrices == pytest.approx((LLAMA_3_8B_WEIGHTS - EMBEDDING) / 1.638e12)
    assert found.attention == pytest.approx(1025 * PAGE / 16 / 1.638e12)
    assert (found.communication, found.attention_share) == (0, None), "one device, and not the TPU's kernel"
    assert found.seconds == pytest.approx(found.matrices + found.attention)
    assert found.tokens_per_second == pytest.approx(1 / found.seconds)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_do_together_what_one_does(tmp_path: Path, tied: bool) -> None:
    model = write_model(tmp_path / "llama", tie_word_embeddings=tied)
    options = {"model": model, "dtype": "bfloat16", "tensor_parallel_size": 2}
    one, three = (resolve_config(EngineConfig.from_options(options | {"pipeline_parallel_size": n})) for n in (1, 3))

    def work(part: ResolvedConfig) -> Work:
        return matrix_work(part, bytes_on_device(generation_programs(part, 2).parameters), 8, 4)

    whole, parts = work(one), [work(part) for part in three.stage_configs]
    assert sum(part.flops for part in parts) == whole.flops
    assert sum(part.bytes for part in parts) == whole.bytes
    assert sum(summed_bytes(part, 8)[0] for part in three.stage_configs) == summed_bytes(one, 8)[0]


def test_stages_are_compared_beside_the_same() -> None:
    """Where a step of one was not compiled, those of the others do not count."""
    memories = [MemoryUse(100, 90, 20, 10, 1), MemoryUse(100, 90, 30, 10, 1)]
    large, small = (CompiledProgram(1.0, bytes_, 0) for bytes_ in (40, 5))
    assert fullest(memories, [large, small]) == 0
    assert fullest(memories, [large, None]) == 1


def test_a_large_prefill_computes(resolved: ResolvedConfig) -> None:
    found = estimate(resolved, CHIPS["v6e"], LLAMA_3_8B_WEIGHTS, PAGE, Bucket(2048, 64))
    matrices = (LLAMA_3_8B_WEIGHTS // 2 - 2 * 128256 * 4096 - 65 * 4096) * 2048 + 128256 * 4096
    attention = 32 * 2 * 4096 * 2048 * 2049 // 2
    assert (found.work, found.bound) == ("prefill", "compute")
    assert found.matrices == pytest.approx(2 * matrices / 918e12)
    assert found.attention == pytest.approx(2 * attention / 918e12)


def test_drafts_read_weights_and_texts_once(resolved: ResolvedConfig) -> None:
    chip = CHIPS["v6e"]
    one = estimate(resolved, chip, LLAMA_3_8B_WEIGHTS, PAGE, Bucket(1, 1))
    found = estimate_drafts(resolved, chip, LLAMA_3_8B_WEIGHTS, PAGE, 1, 7)
    assert found.seconds_without == pytest.approx(one.seconds)
    assert found.seconds == pytest.approx(one.seconds), "it waits for memory, which is read once"
    many = estimate_drafts(resolved, chip, LLAMA_3_8B_WEIGHTS, PAGE, 256, 7)
    matrices = (LLAMA_3_8B_WEIGHTS // 2 - 128256 * 4096) * 2048
    attention = 256 * 1025 * PAGE / 16 / 1.638e12
    assert many.seconds == pytest.approx(2 * matrices / 918e12 + attention, rel=1e-3), "it computes"
    assert many.least_accepted == pytest.approx(many.seconds / many.seconds_without - 1)


def test_many_decodes_read_every_context(resolved: ResolvedConfig) -> None:
    one, many = (attention_work(resolved, PAGE, [500] * rows) for rows in (1, 64))
    assert many.bytes - one.bytes == 63 * 501 * PAGE / 16
    assert many.flops == 64 * one.flops


def test_attention_takes_the_share_that_the_static_model_found(resolved: ResolvedConfig) -> None:
    tpu = _with_tpu_kernel(resolved)
    without, found = (
        estimate(each, CHIPS["v6e"], LLAMA_3_8B_WEIGHTS, PAGE, Bucket(2048, 64)) for each in (resolved, tpu)
    )
    share = attention_share(tpu, CHIPS["v6e"], "prefill")
    assert share is not None
    assert 0 < share < 1
    assert found.attention == pytest.approx(without.attention / share)
    assert (found.attention_share, found.matrices) == (share, without.matrices)


def test_heads_that_share_rows_compute_twice_the_products(resolved: ResolvedConfig) -> None:
    """Llama-3.2-1B is 4 KV heads of 128 with 8 query heads each to the kernel, for which figures are known."""
    tpu = _with_tpu_kernel(resolved)
    narrow, wide = (
        replace(tpu, page_size=64, model=replace(tpu.model, num_kv_heads=heads, head_size=size))
        for heads, size in ((8, 64), (4, 128))
    )
    decode, prefill = (
        [attention_share(each, CHIPS["v6e"], kernel) for each in (narrow, wide)] for kernel in ("decode", "prefill")
    )
    assert decode[0] == decode[1]
    assert prefill[1] is not None
    assert prefill[0] == prefill[1] / 2


def test_devices_sum_over_their_links(tmp_path: Path) -> None:
    options = {"model": write_model(tmp_path / "llama"), "dtype": "bfloat16", "tensor_parallel_size": 8}
    resolved, v6e = resolve_config(EngineConfig.from_options(options)), CHIPS["v6e"]
    assert summed_bytes(resolved, 2048) == (65, 2048 * 4096 * 2)
    # Of 16 MiB each device sends 7/8 twice, half of it in each direction.
    assert communication_seconds(resolved, v6e, 2048) == pytest.approx(65 * 2 * 2048 * 4096 * 2 * 7 / 8 / 2 / 90e9)
    # 8 KiB: what counts is the way, twice halfway around.
    assert communication_seconds(resolved, v6e, 1) == pytest.approx(65 * 2 * 4e-6)
    assert communication_seconds(resolved, CHIPS["h100"], 1) is None
    found = estimate(resolved, v6e, LLAMA_3_8B_WEIGHTS // 8, PAGE // 8, Bucket(1, 1))
    assert found.communication == pytest.approx(65 * 2 * 4e-6)
    assert found.seconds == pytest.approx(found.matrices + found.attention + 65 * 2 * 4e-6)


def test_two_devices_have_one_link() -> None:
    assert sum_seconds(CHIPS["v5e"], 2, 9_000_000) == pytest.approx(2 * 9_000_000 / 2 / 45e9)


def _with_tpu_kernel(resolved: ResolvedConfig) -> ResolvedConfig:
    compile_options = replace(resolved.config.compile, attention_backend="tpu")
    return replace(resolved, config=replace(resolved.config, compile=compile_options)).with_kernel("attention", "tpu")


def test_a_window_limits_what_is_seen(tmp_path: Path) -> None:
    changes = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 100}
    folder = write_model(tmp_path / "mistral", **changes)
    resolved = resolve_config(EngineConfig.from_options({"model": folder, "dtype": "bfloat16"}))
    short, long = (attention_work(resolved, PAGE, [length]).flops for length in (100, 4000))
    assert short == long


def test_a_tied_embedding_is_read_for_the_logits(tmp_path: Path) -> None:
    configurations = [
        resolve_config(
            EngineConfig.from_options({"model": write_model(tmp_path / str(tied), tie_word_embeddings=tied)})
        )
        for tied in (False, True)
    ]
    untied, tied = (matrix_work(resolved, LLAMA_3_8B_WEIGHTS, 1, 1).bytes for resolved in configurations)
    assert tied - untied == EMBEDDING


def test_experts_of_four_bits_are_as_small_as_they_lie(tmp_path: Path) -> None:
    """gpt-oss-120b: 128 experts of 2,880 in 36 layers, 4 for each token; 4 bits, and 2 bytes for each 32 numbers."""
    folder = write_model(tmp_path / "moe", **GPT_OSS_120B)
    resolved = resolve_config(EngineConfig.from_options({"model": folder, "dtype": "bfloat16"}))
    experts, weights, table = 128 * 36 * 3 * 2880 * 2880 * (0.5 + 2 / 32), 70_000_000_000, 2 * 201088 * 2880
    assert matrix_work(resolved, weights, 1, 1).bytes == weights - table - experts * 124 / 128


def test_a_decode_reads_the_experts_it_chooses(tmp_path: Path) -> None:
    """Qwen3-30B-A3B: 128 experts of 768 in 48 layers, 8 for each token."""
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    sizes = {"hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128}
    folder = write_model(tmp_path / "moe", architectures=["Qwen3MoeForCausalLM"], **sizes, **experts)
    resolved = resolve_config(EngineConfig.from_options({"model": folder, "dtype": "bfloat16"}))
    expert, weights, table = 3 * 2048 * 768, 61_000_000_000, 128256 * 2048
    one, many = (matrix_work(resolved, weights, tokens, 1) for tokens in (1, 10_000))
    assert one.bytes == weights - 2 * table - 2 * 48 * 120 * expert
    assert many.bytes == weights - 2 * table, "all experts have some token"
    attention = 2048 * 128 * (2 * 32 + 2 * 4)
    assert one.flops == 2 * (48 * (attention + 8 * expert + 128 * 2048) + table)

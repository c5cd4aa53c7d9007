"""The demo model on the device: the tokens that it generates, whatever attention computes them."""

from pathlib import Path

import pytest

from jaxllm.doctor.engine_run import Answers, Wanted, generate
from jaxllm.doctor.greedy import compare

pytestmark = pytest.mark.device

OPTIONS = {
    "model": "demo", "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 64, "enforce_eager": True,
    "compilation_cache_dir": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def usual(platform: str) -> Answers:
    return generate(Wanted({**OPTIONS, "tensor_parallel_size": 1}))


def check(one: Answers, other: Answers) -> None:
    found = compare(one, other)
    assert not found["wrong"], found
    assert found["equal"] >= found["rows"] - 1, found


@pytest.mark.parametrize("change", [{"attention_backend": "xla"}, {"async_scheduling": False}], ids=str)
def test_the_same_tokens(usual: Answers, change: dict[str, object]) -> None:
    check(usual, generate(Wanted({**OPTIONS, "tensor_parallel_size": 1, **change})))


def test_the_same_tokens_on_all_devices(usual: Answers) -> None:
    size = max(size for size in usual.sizes if size <= usual.devices)
    if size == 1:
        pytest.skip("there is one device")
    check(usual, generate(Wanted({**OPTIONS, "tensor_parallel_size": size})))


def test_a_kept_executable_gives_the_same_tokens(usual: Answers, tmp_path: Path) -> None:
    options = {**OPTIONS, "tensor_parallel_size": 1, "compilation_cache_dir": str(tmp_path)}
    first, second = (generate(Wanted(options)) for _ in range(2))
    check(usual, first)
    assert first.tokens == second.tokens
    assert second.warnings == []

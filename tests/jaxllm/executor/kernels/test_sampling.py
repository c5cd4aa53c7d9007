"""Which implementation chooses tokens, and what becomes of a kernel that is not right."""

import dataclasses
import logging
from typing import Any

import jax
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.kernels.sampling import SAMPLING
from jaxllm.executor.kernels.select import select_kernel
from jaxllm.executor.kernels.self_test import verify_kernel
from jaxllm.executor.kernels.self_tests.sampling import TEST
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.sampling import choose_tokens


def resolved(asked: str = "auto") -> ResolvedConfig:
    """The demo model as on a TPU."""
    here = resolve_config(EngineConfig.from_options({"model": "demo"}))
    options = {"model": "demo", "compilation_cache_dir": "", "sampling_backend": asked}
    return dataclasses.replace(here, config=EngineConfig.from_options(options)).with_kernel("sampling", "tpu")


def verify(before: ResolvedConfig, run: Any) -> ResolvedConfig:
    """With another choice of tokens in place of the kernel's."""
    return verify_kernel(dataclasses.replace(TEST, run=lambda logits, choice, _: run(logits, choice)), before)


def test_what_other_machines_take() -> None:
    (device, *_) = jax.devices()
    assert select_kernel(SAMPLING, "auto", device, 1000) == select_kernel(SAMPLING, "xla", device, 1000) == "xla"
    assert select_kernel(SAMPLING, "reference", device, 1000) == "reference"
    with pytest.raises(ConfigError, match="needs a TPU; this is a CPU"):
        select_kernel(SAMPLING, "tpu", device, 1000)


def test_a_kernel_that_is_right_stays() -> None:
    before = resolved()
    assert verify(before, jax.jit(choose_tokens)) is before


def refuse(*_: Any) -> Any:
    raise RuntimeError("INTERNAL: Mosaic failed\nmore")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [(lambda logits, choice: choose_tokens(-logits, choice), "wrong tokens for"), (refuse, "Mosaic failed")],
    ids=["wrong", "crashed"],
)
def test_one_that_is_not_is_replaced(broken: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert verify(resolved(), broken).backend("sampling") == "xla"
    assert reason in caplog.text
    # Who names it gets it.
    before = resolved("tpu")
    assert verify(before, broken) is before

"""Which implementation chooses tokens, and what becomes of a kernel that is not right."""

import dataclasses
import logging
from typing import Any

import jax
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.resolved import ResolvedConfig, resolve_config
from jaxllm.executor.sampler.choice import choose_sampling
from jaxllm.executor.sampler.self_test import verify_sampling
from jaxllm.pallas_kernels.sampling import choose_tokens


def resolved(asked: str = "auto") -> ResolvedConfig:
    """The demo model as on a TPU."""
    here = resolve_config(EngineConfig.from_options({"model": "demo"}))
    options = {"model": "demo", "compilation_cache_dir": "", "sampling_backend": asked}
    return dataclasses.replace(here, config=EngineConfig.from_options(options), sampling="tpu")


def test_what_other_machines_take() -> None:
    (device, *_) = jax.devices()
    assert choose_sampling("auto", device, 1000) == choose_sampling("xla", device, 1000) == "xla"
    assert choose_sampling("reference", device, 1000) == "reference"
    with pytest.raises(ConfigError, match="needs a TPU; this is a CPU"):
        choose_sampling("tpu", device, 1000)


def test_a_kernel_that_is_right_stays() -> None:
    before = resolved()
    assert verify_sampling(before, jax.jit(choose_tokens)) is before


def refuse(*_: Any) -> Any:
    raise RuntimeError("INTERNAL: Mosaic failed\nmore")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [(lambda logits, choice: choose_tokens(-logits, choice), "other tokens for"), (refuse, "Mosaic failed")],
    ids=["wrong", "crashed"],
)
def test_one_that_is_not_is_replaced(broken: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert verify_sampling(resolved(), broken).sampling == "xla"
    assert reason in caplog.text
    # Who names it gets it.
    before = resolved("tpu")
    assert verify_sampling(before, broken) is before

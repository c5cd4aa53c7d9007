"""Tests that need an accelerator: `scripts/test -m device`, or `scripts/first_light`."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def platform() -> str:
    """The accelerator's platform; without one the tests are skipped, unless a CPU is to stand for it."""
    import jax

    found = jax.default_backend()
    if found == "cpu" and os.environ.get("JAXLLM_TEST_ON_DEVICE") != "cpu":
        pytest.skip("there is no TPU or GPU")
    return found

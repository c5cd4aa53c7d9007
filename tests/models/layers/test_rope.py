"""Frequencies equal those of transformers for many configurations, in both spellings."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.layers.rope import frequencies, rotate, rotation
from tests.models import small

LLAMA_31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0}
# (rope options, theta, max_position_embeddings)
CASES: dict[str, tuple[dict[str, Any], float, int]] = {
    "linear": ({"rope_type": "linear", "factor": 2.5}, 10000.0, 4096),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, 10000.0, 4096),
    "llama-3.1": (LLAMA_31, 500000.0, 131072),
    "llama-3.2": ({**LLAMA_31, "factor": 32.0}, 500000.0, 131072),
    "llama3-without-original-length": (
        {key: value for key, value in LLAMA_31.items() if key != "original_max_position_embeddings"},
        500000.0,
        8192,
    ),
    "qwen-yarn": ({**YARN, "original_max_position_embeddings": 32768}, 1000000.0, 131072),
    "yarn-without-original-length": (YARN, 1000000.0, 32768),
    "yarn-null-factor": ({"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 4096}, 1e4, 16384),
    "yarn-attention-factor": ({**YARN, "attention_factor": 1.25}, 10000.0, 2048),
    "yarn-betas": ({**YARN, "beta_fast": 20.0, "beta_slow": 2.0}, 10000.0, 2048),
    "yarn-null-betas": ({**YARN, "beta_fast": None, "beta_slow": None, "attention_factor": None}, 10000.0, 2048),
    "yarn-not-truncated": ({**YARN, "truncate": False, "beta_fast": 8}, 150000.0, 4096),
    "yarn-mscale": ({**YARN, "mscale": 0.707, "mscale_all_dim": 0.5}, 10000.0, 2048),
    "yarn-one-mscale": ({**YARN, "mscale": 0.707}, 10000.0, 2048),
    "yarn-mscale-zero": ({**YARN, "mscale": 0.707, "mscale_all_dim": 0}, 10000.0, 2048),
    "yarn-shrinking": ({**YARN, "factor": 0.5}, 10000.0, 2048),
}


def parsed(values: dict[str, Any]) -> RopeConfig:
    return read_rope(ConfigFile({"head_dim": 8, **values}))


@pytest.mark.parametrize("name", CASES)
def test_frequencies_equal_transformers(name: str) -> None:
    options, theta, max_positions = CASES[name]
    sizes = {"hidden_size": 512, "num_attention_heads": 4, "max_position_embeddings": max_positions}
    oracle = transformers.LlamaConfig(**sizes, rope_parameters={"rope_theta": theta, **options})
    wanted, wanted_factor = ROPE_INIT_FUNCTIONS[options["rope_type"]](oracle)
    new = parsed({**sizes, "rope_parameters": {"rope_theta": theta, **options}})
    old = parsed({**sizes, "rope_theta": theta, "rope_scaling": options})
    oldest = {("type" if key == "rope_type" else key): value for key, value in options.items()}
    assert new == old == parsed({**sizes, "rope_theta": theta, "rope_scaling": oldest})
    found, factor = frequencies(new, 128, max_model_len=max_positions)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-6)
    assert factor == pytest.approx(wanted_factor, rel=1e-12)


@pytest.mark.parametrize("length", [4097, 6000, 32768])
def test_dynamic_equals_transformers_at_the_longest_length(length: int) -> None:
    oracle = transformers.LlamaConfig(
        max_position_embeddings=4096, rope_parameters={"rope_type": "dynamic", "factor": 2.0}
    )
    wanted, _ = ROPE_INIT_FUNCTIONS["dynamic"](oracle, seq_len=length)
    rope = RopeConfig(kind="dynamic", factor=2.0, trained_length=4096)
    np.testing.assert_allclose(frequencies(rope, 128, length)[0], wanted.numpy(), rtol=2e-6)


def test_dynamic_is_plain_up_to_the_trained_length() -> None:
    rope, plain = RopeConfig(kind="dynamic", factor=2.0, trained_length=4096), RopeConfig()
    for length in (100, 4096):
        np.testing.assert_array_equal(frequencies(rope, 64, length)[0], frequencies(plain, 64, length)[0])


def test_default_is_not_scaled_whatever_else_is_there() -> None:
    assert (
        parsed({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "default", "factor": 9.0}}).factor == 1
    )
    assert parsed({"max_position_embeddings": 64, "rope_scaling": None, "rope_theta": 7.0}).theta == 7.0
    assert parsed({"max_position_embeddings": 64}) == RopeConfig(trained_length=64)


def test_original_length_outside_the_rope_section_counts_first() -> None:
    rope = {**LLAMA_31, "original_max_position_embeddings": 512}
    values = {"max_position_embeddings": 4096, "original_max_position_embeddings": 256, "rope_scaling": rope}
    assert parsed(values).trained_length == 256


@pytest.mark.parametrize(
    ("rope", "part"),
    [
        ({"rope_type": "lama3"}, "rope type 'lama3' is not supported; did you mean 'llama3'"),
        ({"rope_type": "mrope", "mrope_section": [1]}, "'mrope' is not supported"),
        ({"rope_type": "linear"}, "'factor' is missing"),
        ({"rope_type": "linear", "factor": "2"}, "'factor' must be a finite number, found \"2\""),
        ({"rope_type": "linear", "factor": -1}, "'factor' must be positive, found -1"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}, "'high_freq_factor' is missing"),
        (
            {"rope_type": "default", "partial_rotary_factor": 1.5},
            "'partial_rotary_factor' must be 1 in this architecture",
        ),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "'short_factor' must be a list of 4 numbers"),
        ({"full_attention": {"rope_type": "default"}}, "per layer type"),
        (3, "'rope_scaling' must be an object, found 3"),
    ],
)
def test_what_is_not_supported_is_an_error(rope: Any, part: str) -> None:
    with pytest.raises(ModelError) as error:
        parsed({"max_position_embeddings": 64, "rope_scaling": rope})
    assert part in str(error.value)
    assert "rope_scaling" in str(error.value)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (RopeConfig(trained_length=100), 100),
        (RopeConfig(kind="linear", factor=2.0, trained_length=100), 200),
        (RopeConfig(kind="dynamic", factor=2.0, trained_length=100), 100),
        (RopeConfig(kind="llama3", factor=8.0, trained_length=20), 100),
        (RopeConfig(kind="yarn", factor=4.0, trained_length=32), 128),
        (RopeConfig(kind="yarn", factor=4.0, trained_length=25), 100),
    ],
)
def test_context_length(rope: RopeConfig, expected: int) -> None:
    config = dataclasses.replace(small.alike(small.MODEL, rope=rope), max_position_embeddings=100)
    assert config.context_length == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rotation_turns_pairs_and_keeps_the_type(dtype: str) -> None:
    positions = np.array([0, 1, 1000], np.int32)
    heads = np.random.default_rng(0).normal(size=(3, 2, 8)).astype(np.float32)
    out = rotate(jnp.asarray(heads, dtype), rotation(RopeConfig(), 8, 2048, jnp.asarray(positions)))
    assert out.dtype == dtype
    angles = positions[:, None] * 10000.0 ** -(np.arange(0, 8, 2) / 8)
    turned = (heads[..., :4] + 1j * heads[..., 4:]) * np.exp(1j * angles)[:, None]
    wanted = np.concatenate([turned.real, turned.imag], -1)
    np.testing.assert_allclose(np.asarray(out, np.float32), wanted, atol=2e-4 if dtype == "float32" else 0.03)

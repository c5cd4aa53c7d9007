"""Latent attention on several devices: heads are shared, latents are whole; and what its cache takes."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxllm.executor.memory.memory import CacheShape
from jaxllm.models.attention_plan import KeyIndexPlan, LatentAttentionPlan, RopeConfig
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.random_weights import RandomWeights
from jaxllm.models.config import ModelConfig
from jaxllm.models.kv_shape import kv_shape
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.models.sharding import make_mesh, working_sizes
from tests.models import paged, small

PLAN = LatentAttentionPlan(rank=24, plain_size=12, rope_size=8, value_size=20, query_rank=16, rope=RopeConfig())
MODEL = dataclasses.replace(
    small.MODEL,
    architecture="MiniCPM3ForCausalLM",
    num_kv_heads=1,
    head_size=8,
    vocab_size=64,
    intermediate_size=32,
    layers=(LayerPlan(attention=PLAN),) * 2,
)
PROMPTS = [list(range(1, 14)), list(range(30, 41))]
CHUNKS = [(7, 0), (1, 4), (5, 7)]

DEEPSEEK_V3 = dataclasses.replace(
    MODEL,
    layers=(LayerPlan(attention=dataclasses.replace(PLAN, rank=512, rope_size=64)),) * 61,
)


def logits(devices: int, model: ModelConfig = MODEL, *, native: bool = False) -> list[np.ndarray]:
    """Of two prompts in chunks, which end in a decode of the first alongside a chunk of the second."""
    mesh = None if devices == 1 else make_mesh(jax.devices(), devices)
    options = ForwardOptions(stack="scan", mesh=mesh, max_model_len=64, native_matmul=native)
    loaded = load_model(RandomWeights(1), model, options, "float32")
    found = paged.run(loaded, PROMPTS, CHUNKS, 16, paged.compiled_step(loaded))
    return [each[:, : model.vocab_size] for each in found]


@pytest.fixture(scope="module")
def on_one() -> list[np.ndarray]:
    """The output of one device."""
    return logits(1)


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_devices_share_the_heads(on_one: list[np.ndarray], devices: int) -> None:
    assert devices in working_sizes(MODEL)
    for found, wanted in zip(logits(devices), on_one, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_products_of_native_kernels(on_one: list[np.ndarray]) -> None:
    """Matrices that can be packed are, in what is fused and what is not."""
    for found, wanted in zip(logits(1, native=True), on_one, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("devices", [1, 4])
def test_a_token_takes_what_the_formula_says(devices: int) -> None:
    """576 numbers a layer for DeepSeek V3, on every device."""
    size = {"num_layers": 61, "page_size": 16, "dtype": "bfloat16", "implementation": "xla"}
    cache = CacheShape.of(DEEPSEEK_V3, **size, num_devices=devices, platform="cpu")  # type: ignore[arg-type]
    assert cache.page_bytes == devices * 16 * 61 * 576 * 2
    assert cache.axes == (None, "shards"), "no axis of it is split over heads"
    shape = kv_shape(DEEPSEEK_V3, "xla", layers=61, pages=3, page_size=16, dtype="bfloat16", devices=devices)
    assert cache.array(3) == shape == (61, 3, 16, 576)


@pytest.mark.parametrize(("index", "numbers"), [(None, 640), (KeyIndexPlan(heads=64, size=128, top=2048), 768)])
def test_rows_are_whole_on_tpus(index: KeyIndexPlan | None, numbers: int) -> None:
    """576 numbers take five rows of 128 lanes, a ninth more than the formula; with an index key of 128, six."""
    shape = CacheShape.of(
        dataclasses.replace(DEEPSEEK_V3, layers=tuple(layer.attending(index=index) for layer in DEEPSEEK_V3.layers)),
        num_layers=61,
        page_size=16,
        dtype="bfloat16",
        implementation="xla",
        num_devices=1,
        platform="tpu",
    )
    assert shape.page_bytes == 16 * 61 * numbers * 2

"""A model with an adapter in a slot gives the logits of PEFT on transformers; what slots lack is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.reading import read_adapter
from jaxllm.models.adapters.slot_arrays import slot_arrays
from jaxllm.models.causal_lm import abstract_model, checkpoint_names, load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.layers.adapter_factors import row_squares, set_factors, square_shapes
from jaxllm.models.layers.adapter_slots import split_adapters
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.models.options import AdapterShape, ForwardOptions
from jaxllm.pallas_kernels.low_rank import TokenSlots
from tests.models.adapters.test_every_family import SPREAD
from tests.models.adapters.trained import PROMPTS, linear_layers, save, train
from tests.models.every_family import FAMILIES
from tests.models.paged import empty_cache, make_batch, shuffled_pages
from tests.models.test_parity import expected_logits
from tests.quick import QUICK

SOON = ("llama", "phi3", "gpt2", "deepseek_v2", "mamba2")
SHAPE, SLOT = AdapterShape(16, 8, "float32"), 5
REFUSED = (
    "altup_", "hyper_connection", "per_layer_model_projection", "project_in", "project_out", "weights_proj",
    "mlp.gate.wg",
)  # fmt: skip
"""Parts of names of modules without slots: before and after the layers, weights of an indexer's heads, a router."""


def logits(folder: Path, adapter: Path | None, stack: str, shape: AdapterShape = SHAPE) -> np.ndarray:
    """Those of the first prompt, with the adapter in a slot, or in none."""
    config, options = read_config(folder), ForwardOptions(max_model_len=64, stack=stack)  # type: ignore[arg-type]
    model = load_model(Checkpoint(folder), config, options, "float32")
    with_slots = abstract_model(config, replace(options, adapters=shape), "float32")
    adapted, slots = split_adapters(with_slots)
    arrays: list[Any] = [np.zeros(each.shape, each.dtype) for each in slots.values()]
    if adapter is not None:
        flat: Any = nnx.to_flat_state(nnx.state(abstract_model(config, options, "float32")))
        specs = {path: ParameterSpec.of(variable) for path, variable in flat}
        found = read_adapter(adapter, model, checkpoint_names(config, options))
        for array, own in zip(arrays, slot_arrays(found, slots, specs), strict=True):
            array[(*[slice(None)] * (array.ndim - 3), slice(SLOT, SLOT + 1))] = own
    parameters: Any = nnx.split(model)[1]
    if shape.has_vectors:
        squares = row_squares(adapted.merge(parameters, arrays), "float32")
        assert [each.shape for each in squares] == [each.shape for each in square_shapes(with_slots)]
        place = jnp.int32(SLOT)
        arrays = list(set_factors(adapted, parameters, list(map(jnp.asarray, arrays)), squares, place, "float32"))
    prompt = PROMPTS[0]
    wanted = jnp.full(len(prompt), -1 if adapter is None else SLOT, jnp.int32)
    batch = replace(
        make_batch([prompt], [0], shuffled_pages(1), len(prompt)),
        adapters=TokenSlots.of(wanted, SHAPE.num_slots, SHAPE.rank),
    )

    def step(parameters: Any, arrays: Any) -> jax.Array:
        whole = adapted.merge(parameters, arrays)
        hidden, _ = whole(batch, empty_cache(model))
        found: jax.Array = whole.logits(hidden)
        return found

    run: Callable[..., jax.Array] = jax.jit(step, compiler_options=QUICK)
    return np.asarray(run(parameters, arrays))


@pytest.mark.parametrize(("name", "module"), [("deepseek_v32", "indexer.weights_proj"), ("hunyuan_moe", "mlp.gate.wg")])
def test_a_matrix_without_slots_is_named(tmp_path: Path, name: str, module: str) -> None:
    folder = save(train(FAMILIES[name].save(tmp_path), target_modules=[module]), tmp_path / "adapter")
    with pytest.raises(AdapterError, match=rf"adapters of 'model.layers.0.\S*{module}' are not supported; merge the"):
        logits(tmp_path, folder, "loop")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOON else pytest.mark.exhaustive) for name in FAMILIES]
)
def test_logits(tmp_path: Path, name: str) -> None:
    model = FAMILIES[name].save(tmp_path)
    base = expected_logits(model, PROMPTS[:1])[0]
    modules = [each for each in linear_layers(model) if not any(part in each for part in REFUSED)]
    trained = train(model, spread=SPREAD.get(name, 0.1), target_modules=modules)
    folder = save(trained, tmp_path / "adapter")
    expected = expected_logits(trained, PROMPTS[:1])[0]
    assert np.abs(expected - base).max() > 0.1
    stack, scored = "scan" if name in ("llama", "gpt2", "deepseek_v2") else "loop", slice(base.shape[1])
    np.testing.assert_allclose(logits(tmp_path, folder, stack)[:, scored], expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(logits(tmp_path, None, stack)[:, scored], base, atol=1e-4, rtol=0)


VECTORS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"use_dora": True}),
    ("gpt2", {"use_dora": True, "use_rslora": True}),
    ("phi3", {"use_dora": True}),
    ("qwen2", {"bias": "lora_only"}),
    ("llama", {"lora_bias": True}),
]


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*each, marks=[pytest.mark.exhaustive] * (each[0] == "llama")) for each in VECTORS],
)
def test_magnitudes_and_biases(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    model = FAMILIES[name].save(tmp_path)
    base = expected_logits(model, PROMPTS[:1])[0]
    trained = train(model, target_modules=linear_layers(model), **options)
    folder, shape = save(trained, tmp_path / "adapter"), replace(SHAPE, has_vectors=True)
    expected = expected_logits(trained, PROMPTS[:1])[0]
    stack = "scan" if name in ("llama", "gpt2") else "loop"
    np.testing.assert_allclose(logits(tmp_path, folder, stack, shape), expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(logits(tmp_path, None, stack, shape), base, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"use_dora": True},
            r"self_attn.q_proj' has magnitudes \(use_dora\), which take --lora-vectors",
        ),
        ({"lora_bias": True}, r"q_proj' has a bias \(lora_bias\), which takes --lora-vectors"),
        ({"modules_to_save": ["lm_head"]}, "is trained as a whole, which is not supported"),
        ({"trainable_token_indices": [1, 2]}, "trained embeddings are not supported"),
        ({"target_modules": ["embed_tokens", "q_proj"]}, "'model.embed_tokens.weight' is trained as a whole"),
    ],
)
def test_what_slots_do_not_have_is_refused_by_name(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    model = FAMILIES["llama"].save(tmp_path)
    folder = save(train(model, **{"target_modules": ["q_proj"], **options}), tmp_path / "adapter")
    with pytest.raises(AdapterError, match=message) as error:
        logits(tmp_path, folder, "loop")
    assert str(folder) in str(error.value)
    assert "merge the adapter into its model to serve it" in str(error.value)


def test_activated_adapters_of_matrices_of_heads_are_refused(tmp_path: Path) -> None:
    model = FAMILIES["deepseek_v3"].save(tmp_path)
    trained = train(model, target_modules=["kv_b_proj"], alora_invocation_tokens=[1, 2])
    folder = save(trained, tmp_path / "adapter")
    with pytest.raises(AdapterError, match=r"'alora_invocation_tokens' with an adapter of '.*kv_b_proj'"):
        logits(tmp_path, folder, "loop")

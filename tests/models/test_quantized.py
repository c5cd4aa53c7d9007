"""Models whose matrices are rounded while they are read, against ordinary ones of the rounded numbers."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from jaxllm.models.causal_lm import abstract_model, load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.checkpoint.weight_files import SINGLE_FILE
from jaxllm.models.checkpoint.weight_target import checkpoint_slots
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.quantization.online import METHODS, quantized
from jaxllm.models.quantization.rounding import rounded
from jaxllm.models.quantization.types import with_types
from jaxllm.models.sharding import make_mesh
from jaxllm.pallas_kernels.linear.weight_type import INT4, Activations, Values, WeightType
from tests.models import small
from tests.models.paged import compiled_step, empty_cache, make_batch, shuffled_pages
from tests.thinned import thinned

DENSE = dataclasses.replace(small.MODEL, hidden_size=32, intermediate_size=64, head_size=8, vocab_size=48)
EXPERTS = ExpertsPlan(count=4, per_token=2, size=64, router=RouterPlan(normalised=True))
MOE = dataclasses.replace(
    DENSE,
    architecture="MixtralForCausalLM",
    layers=tuple(dataclasses.replace(layer, mlp=EXPERTS) for layer in DENSE.layers),
)
UNEVEN = dataclasses.replace(DENSE, hidden_size=160, intermediate_size=208, layers=DENSE.layers[:1])
"""Inputs of layers are 160, 32 and 208: groups of 128 and one that is shorter."""
MODELS = {
    "dense": DENSE,
    "tied": dataclasses.replace(DENSE, tie_word_embeddings=True),
    "experts": MOE,
    "uneven": UNEVEN,
}


def names_of(config: ModelConfig) -> Any:
    return registry.lookup(config.architecture).names_of(config)


def save(folder: Path, config: ModelConfig, types: ModelConfig | None = None) -> Path:
    """A random checkpoint; with `types`, of what its matrices are rounded to."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    tensors = {}
    kinds = {} if types is None else kinds_of(types)
    for name, shape in shapes_of(config).items():
        values = rng.standard_normal(shape, np.float32) * (1.0 if len(shape) < 2 else shape[-1] ** -0.5)
        kind = kinds.get(name)
        tensors[name] = values if kind is None else rounded(values, kind).dequantized(np.float32)
    save_file(tensors, folder / SINGLE_FILE)
    return folder


def specs_of(config: ModelConfig, **options: Any) -> dict[Any, ParameterSpec]:
    state = nnx.split(abstract_model(config, ForwardOptions(**options), "float32"))[1]
    return {path: ParameterSpec.of(variable) for path, variable in nnx.to_flat_state(state)}


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    slots = checkpoint_slots(specs_of(config), names_of(config))
    return {name: own[0].tensor_shape for name, own in slots.items()}


def kinds_of(config: ModelConfig) -> dict[str, WeightType]:
    """Types of the checkpoint's tensors."""
    specs = specs_of(config)
    slots = checkpoint_slots(specs, names_of(config))
    kinds = {name: specs[own[0].path].matrix for name, own in slots.items()}
    return {name: layout.kind for name, layout in kinds.items() if layout is not None}


def logits(folder: Path, config: ModelConfig, load_format: str = "auto", **options: Any) -> np.ndarray:
    """Of the tokens of two rows."""
    model = load_model(open_weights(folder, load_format), config, ForwardOptions(**options), "float32")
    state, step = compiled_step(model)
    batch = make_batch([[3, 1, 4, 1, 5], [9, 2]], [0, 0], shuffled_pages(2), 8)
    found, _ = step(state, batch, empty_cache(model))
    return np.asarray(found)[:7, : config.vocab_size]


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "method", "kind"),
    thinned(
        [
            ("tied", "int8", "native"),
            ("experts", "int4", "native"),
            slow("uneven", "int4", "scan"),
            slow("dense", "fp8", "loop"),
        ],
        [
            slow("uneven", "int4", "native"),
            slow("experts", "int4", "scan"),
            slow("dense", "int4", "scan"),
            slow("experts", "int8", "loop"),
        ],
    ),
)
def test_a_checkpoint_is_rounded(tmp_path: Path, name: str, method: str, kind: str) -> None:
    """In a loop or scanned, or scanned with the kernels of CPUs."""
    config = MODELS[name]
    typed = quantized(config, names_of(config), method)
    wanted = logits(save(tmp_path / "rounded", config, typed), config)
    folder = save(tmp_path / "ordinary", config)
    stack = "loop" if kind == "loop" else "scan"
    found = logits(folder, typed, stack=stack, native_matmul=kind == "native")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    # Something was rounded, and not much is lost.
    ordinary = logits(folder, config)
    assert 1e-3 < np.abs(wanted - ordinary).max() < (2.0 if method == "int4" else 0.5)


@pytest.mark.parametrize(
    ("name", "expert_parallel", "devices"),
    thinned([("experts", False, 2), slow("experts", True, 4)], [slow("dense", False, 4)]),
)
def test_devices_share_matrices(tmp_path: Path, name: str, expert_parallel: bool, devices: int) -> None:
    config = MODELS[name]
    kind = WeightType(Values.CODES, group=16, code=INT4)
    typed = with_types(config, names_of(config), lambda module, _: None if "router" in module else kind)
    folder = save(tmp_path, config)
    mesh = make_mesh(jax.devices(), devices)
    found = logits(folder, typed, mesh=mesh, expert_parallel=expert_parallel, stack="scan")
    np.testing.assert_allclose(found, logits(folder, typed), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "activations"), [(Values.INT8, Activations.PER_TOKEN), (Values.FLOAT8_E4M3, Activations.STATIC)]
)
def test_random_weights_of_any_type(values: Values, activations: Activations) -> None:
    """The same however layers run and devices share them; logits stay about one."""
    kind = WeightType(values, activations=activations)
    typed = with_types(DENSE, names_of(DENSE), lambda *_: kind)
    wanted = logits(Path("absent"), typed, "dummy")
    assert 0.3 < wanted.std() < 3
    found = logits(Path("absent"), typed, "dummy", stack="scan", mesh=make_mesh(jax.devices(), 2))
    # What is rounded differs where a sum's order does.
    np.testing.assert_allclose(found, wanted, atol=0.1)


def test_layers_of_unlike_types(tmp_path: Path) -> None:
    """Layers of another type have another plan; parts of one product get a type that holds both."""
    int8, int4 = METHODS["int8"], WeightType(Values.CODES, group=16, code=INT4)

    def type_of(module: str, layer: int) -> WeightType | None:
        return int4 if layer == 0 and module.endswith(("query", "down", "gate")) else int8

    typed = with_types(DENSE, names_of(DENSE), type_of)
    specs = specs_of(typed, stack="scan")
    assert {path[2] for path in specs if path[:2] == ("layers", "all")} == {"0:2:2", "1:2:2"}
    merged = specs["layers", "all", "0:2:2", "attention", "query_key_value", "weight"].matrix
    assert merged is not None
    assert merged.kind == WeightType(Values.INT8, group=16)
    found = logits(save(tmp_path, DENSE), typed, stack="scan")
    assert np.isfinite(found).all()


def test_types_that_cannot_be_one() -> None:
    def type_of(module: str, layer: int) -> WeightType | None:
        return WeightType(Values.FLOAT8_E4M3) if module.endswith(".up") else METHODS["int8"]

    with pytest.raises(ModelError, match=r"mlp\.gate.*mlp\.up"):
        specs_of(with_types(DENSE, names_of(DENSE), type_of))


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    values = {name: np.zeros(shape, np.float32) for name, shape in shapes_of(DENSE).items()}
    name = "model.layers.1.mlp.down_proj.weight"
    values[name][3, 5] = np.inf
    save_file(values, tmp_path / SINGLE_FILE)
    with pytest.raises(ModelError, match=name):
        load_model(Checkpoint(tmp_path), quantized(DENSE, names_of(DENSE), "int8"), ForwardOptions(), "float32")

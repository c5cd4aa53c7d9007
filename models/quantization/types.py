"""The type of each matrix of a model."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from jaxllm.models.checkpoint.tensor_source import Source, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.quantization.format import Format
from jaxllm.pallas_kernels.linear.weight_type import WeightType

LAYERS = "layers.*."
"""How names of modules in layers begin."""
TOWERS = ("tower.", "sound.")
"""The same of those that see images or hear, whose matrices are always ordinary ones."""

TypeOf = Callable[[str, int], WeightType | None]
"""The type of the matrix of a module, by its name in the model ("layers.*.mlp.down") and the number of its layer."""


def with_types(config: ModelConfig, names: Mapping[str, str | Source], type_of: TypeOf) -> ModelConfig:
    """The model whose modules called `names` have matrices of the types that `type_of` says.

    Names of tensors that are not matrices are ignored. Layers with other types than their neighbours get another plan.
    """
    inside = [name for name in names if name.startswith(LAYERS)]

    def found(modules: list[str], layer: int) -> tuple[tuple[str, WeightType], ...]:
        pairs = ((name, type_of(name, layer)) for name in modules)
        return tuple((name.removeprefix(LAYERS), kind) for name, kind in pairs if kind is not None)

    layers = tuple(replace(plan, weight_types=found(inside, layer)) for layer, plan in enumerate(config.layers))
    others = [name for name in names if name not in inside and not name.startswith(TOWERS)]
    return replace(config, layers=layers, weight_types=found(others, 0))


def with_format(config: ModelConfig, names: Mapping[str, str | Source], known: Format) -> ModelConfig:
    """The model as a checkpoint of a format has it."""

    def type_of(name: str, layer: int) -> WeightType | None:
        source = source_of(names[name])
        if source.layers is not None and layer >= len(source.layers):
            return None
        # Experts of a layer are of one type; loading sees each.
        return known.weight_type(source.tensor("weight", layer, 0))

    return replace(with_types(config, names, type_of), weight_format=known)

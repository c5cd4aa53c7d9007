"""Which linear layers get slots for adapters, where an operator names modules (`lora_target_modules`)."""

from collections.abc import Mapping, Sequence
from typing import Final

from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.places import Place, Places
from jaxllm.models.layers.adapter_slots import within_layer

EXPERTS: Final = "experts"
"""What vLLM calls the routed experts of a layer."""

MERGED: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Names that vLLM has for several modules of a checkpoint, and their names there."""


def is_target(module: str, targets: Sequence[str]) -> bool:
    """Whether a checkpoint's module is one of `targets`: names of modules, or the last parts of them."""
    return any(module == each or module.endswith(f".{each}") for each in spelled_out(targets))


def spelled_out(targets: Sequence[str]) -> list[str]:
    """The names of modules, with those of merged ones, and in their place the ones that are merged."""
    return [name for each in targets for name in (each, *MERGED.get(each, ()))]


def target_paths(places: Places, targets: Sequence[str]) -> tuple[tuple[str | int, ...], ...]:
    """The linear layers of `targets`, by their paths within a layer of the model, sorted.

    Raises `AdapterError` for a name that no linear layer of the model has.
    """
    linear = {module: found for module, found in places.weights.items() if any(map(_is_in_layer, found))}
    for each in targets:
        if each == EXPERTS:
            if not places.experts.layers:
                raise AdapterError(f"lora_target_modules: the model has no routed {EXPERTS}")
            continue
        if not any(is_target(module, [each]) for module in linear):
            known = sorted({module.rpartition(".")[2] for module in linear})
            raise AdapterError(
                f"lora_target_modules: the model has no linear layer {each[:200]!r}; its layers have {', '.join(known)}"
            )
    return tuple(
        sorted(
            {
                within_layer(place.target.path[:-1])
                for module, found in linear.items()
                if is_target(module, targets)
                for place in found
                if _is_in_layer(place)
            },
            key=str,
        )
    )


def _is_in_layer(place: Place) -> bool:
    return place.kind == "linear" and "layers" in place.target.path

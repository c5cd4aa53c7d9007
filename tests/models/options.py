"""Options of transformers' configurations, each with other values that are plausible."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import transformers

Path = tuple[str, ...]
Change = tuple[Path, Any]
"""Where an option is in a configuration, and a value for it."""

EVERYWHERE = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
"""Options of all configurations, which have nothing to do with what a decoder computes."""

ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default", "rope_theta": 300.0},
    {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
    {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
)
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu", "tanh", "sigmoid")
VALUES: Mapping[str, tuple[Any, ...]] = {
    "head_dim": (8, 32, None),
    "hidden_size_per_layer_input": (8, 24),
    "max_position_embeddings": (48, 128),
    "max_seq_len": (48, 128),
    "n_positions": (48, 128),
    "mlp_only_layers": ([0],),
    "num_hidden_layers": (1, 3),
    "n_layers": (1, 3),
    "pretraining_tp": (2,),
    "rope_parameters": ROPES,
    "sliding_window": (5, 11, None),
    "vocab_size": (96, 130),
}
"""Of options by their names."""


def changes(config: transformers.PreTrainedConfig) -> Iterator[Change]:
    """All changes of one option of a configuration."""
    for entry in dataclasses.fields(config):
        if entry.name in EVERYWHERE or entry.name.endswith("token_id"):
            continue
        yield from _of_option((entry.name,), _given(config, entry.name), entry.type)


def _given(config: transformers.PreTrainedConfig, name: str) -> Any:
    """The value that holds for all layers; asked for what some of them have otherwise, transformers raises."""
    return vars(config)[name] if name in vars(config) else getattr(config, name)


def changed(config: transformers.PreTrainedConfig, change: Change) -> dict[str, Any]:
    """The argument that makes the change to a configuration."""
    (name, *inside), value = change
    return {name: _replaced(_given(config, name), inside, copy.deepcopy(value))}


def _replaced(section: Any, inside: Sequence[str], value: Any) -> Any:
    """The section with another value in it; transformers writes into what it is given, so it gets a copy."""
    if not inside:
        return value
    values = copy.deepcopy(section if isinstance(section, dict) else section.to_dict())
    return {**values, inside[0]: _replaced(values[inside[0]], inside[1:], value)}


def _of_option(path: Path, value: Any, kind: Any) -> Iterator[Change]:
    """Changes of the option at `path`, and of those in it where it is a section."""
    if isinstance(value, transformers.PreTrainedConfig):
        yield from (((*path, *inside), other) for inside, other in changes(value))
        return
    is_section = isinstance(value, dict)
    if not (is_section and any(isinstance(inner, dict) for inner in value.values())):
        name = "rope_parameters" if path[0] == "rope_parameters" and is_section else path[-1]
        yield from ((path, other) for other in _others(name, value, kind))
    for key, inner in value.items() if is_section else ():
        if key != "rope_type":
            yield from _of_option((*path, key), inner, type(inner))


def _others(name: str, value: Any, kind: Any) -> Sequence[Any]:
    """Values that are plausible for an option of this name and type, other than the one it has."""
    kinds = get_args(kind) or (kind,)
    if name in VALUES:
        found: Sequence[Any] = VALUES[name]
    elif isinstance(value, bool) or bool in kinds:
        found = (False, True)
    elif isinstance(value, str) or str in kinds:
        found = ACTIVATIONS if value in ACTIVATIONS else ()
    elif isinstance(value, int | float):
        found = (value * 2, value // 2 if isinstance(value, int) else value / 2) if value else (1, 2, 0.5)
    elif isinstance(value, list):
        found = (value[::-1],)
    elif value is None:
        found = (2, 96) if int in kinds else (0.5,) if float in kinds else ()
    else:
        found = ()
    if name.endswith("_size"):
        found = [other for other in found if not isinstance(other, float)]
    return [other for other in found if other != value]

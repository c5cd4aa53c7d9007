"""What `adapter_config.json` says of an adapter.

Format of PEFT: https://huggingface.co/docs/peft/package_reference/lora#peft.LoraConfig, and of mlx-lm:
https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/LORA.md.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.file_names import CONFIG_FILE
from jaxllm.models.adapters.patterns import check_pattern, ends_with, first_match, is_inside, layer_number, matches
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError, nearest

ALL_LINEAR: Final = "all-linear"
DEFAULT_RANK: Final = 8
"""PEFT's, of `r` and of `lora_alpha`."""
MAX_ENTRIES: Final = 10_000
"""Of a list or a mapping in the file."""

Bias = Literal["none", "all", "lora_only"]
Tool = Literal["peft", "mlx"]

_HONOURED: Final = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "bias",
    "exclude_modules",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_bias",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
    "use_rslora",
)

_TRAINING: Final = (
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "lora_dropout",
    "lora_ga_config",
    "loftq_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
    "velora_config",
)
"""Fields that change nothing once an adapter is trained. `fan_in_fan_out` says how the base model keeps its matrices,
which the model itself knows: A and B lie the same either way."""

_REFUSED: Final[Mapping[str, str]] = {
    "arrow_config": "adapters that a router chooses for each token (Arrow)",
    "ensure_weight_tying": "an adapter shared by the embedding and the output layer",
    "kasa_config": "KaSA, which changes the base weights",
    "layer_replication": "layers that are repeated",
    "megatron_config": "layers of Megatron",
    "monteclora_config": "MonteCLoRA",
    "use_bdlora": "block-diagonal adapters (BD-LoRA)",
    "use_qalora": "QA-LoRA, whose A is for groups of inputs",
}
"""Fields that change what an adapter computes and are not supported, and what they mean."""

_CHANGES_BASE: Final = ("corda", "loftq", "lora_ga", "olora", "pissa")
"""Initialisations that leave other base weights behind, to which the adapter belongs."""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """One adapter's configuration. Names of modules are those of the base model, without `base_model.model.`."""

    source: str
    """The file, for errors."""
    values: Mapping[str, Any]
    """Everything in it, as it is there."""
    tool: Tool = "peft"
    rank: int = DEFAULT_RANK
    alpha: float = DEFAULT_RANK
    use_rslora: bool = False
    scale: float | None = None
    """What B is multiplied by, whatever the rank; None: it follows from rank and alpha."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    """Other ranks, by regular expressions of modules' names. The first that fits counts."""
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    targets: str | tuple[str, ...] | None = None
    """A regular expression, endings of modules' names, or 'all-linear'; None: whatever there are tensors for."""
    excluded: str | tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    """Numbers of the layers that have adapters; None: all."""
    layers_pattern: tuple[str, ...] = ()
    bias: Bias = "none"
    """Which of the base model's biases the adapter brings others for."""
    has_lora_bias: bool = False
    """Whether B has a bias."""
    modules_to_save: tuple[str, ...] = ()
    use_dora: bool = False
    target_parameters: tuple[str, ...] = ()
    token_indices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Rows of embeddings that the adapter replaces, by the endings of the embeddings' names."""
    invocation_tokens: tuple[int, ...] | None = None
    """The adapter counts from the last place on where a prompt has these tokens (aLoRA); None: from the start."""

    @staticmethod
    def read(folder: Path) -> "AdapterConfig":
        """The configuration in `folder`.

        Raises `AdapterError` for a file that is missing or broken, and naming the field that is wrong, not supported,
        or not known.
        """
        path = folder / CONFIG_FILE
        if not path.is_file():
            raise AdapterError(f"{folder}: {CONFIG_FILE} is not there, so this is not an adapter's folder")
        try:
            file = ConfigFile.read(path)
            return _read_mlx(file) if file.has("fine_tune_type") or file.has("lora_parameters") else _read_peft(file)
        except AdapterError:
            raise
        except ModelError as error:
            raise AdapterError(str(error)) from None

    def rank_of(self, module: str) -> int:
        """The rank of a module's adapter."""
        return self.rank_pattern.get(first_match(self.rank_pattern, module) or "", self.rank)

    def scaling_of(self, module: str) -> float:
        """What the product of B and A is multiplied by."""
        if self.scale is not None:
            return self.scale
        alpha, rank = (
            self.alpha_pattern.get(first_match(self.alpha_pattern, module) or "", self.alpha),
            self.rank_of(module),
        )
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def is_target(self, module: str) -> bool:
        """Whether PEFT gives a module an adapter, by its name."""
        if self.is_excluded(module):
            return False
        if any(matches(module, parameter.rpartition(".")[0]) for parameter in self.target_parameters):
            return True
        match self.targets:
            case None:
                return not self.target_parameters
            case str(pattern):
                return pattern == ALL_LINEAR or is_inside(pattern, module)
            case endings:
                return ends_with(module, endings) and self._is_in_layers(module)

    def is_target_parameter(self, name: str) -> bool:
        """Whether PEFT gives a parameter of a module that is not linear an adapter, by its name."""
        return ends_with(name, self.target_parameters)

    def is_excluded(self, module: str) -> bool:
        """Whether a module is one that has no adapter in any case."""
        if self.saves(module):
            return True
        excluded = self.excluded
        return is_inside(excluded, module) if isinstance(excluded, str) else ends_with(module, excluded)

    def saves(self, module: str) -> bool:
        """Whether the adapter has another module in this one's place, or in that of one it is inside of."""
        parts = module.split(".")
        # As in PEFT, where 'classifier' means 'pre_classifier' as well.
        return any(".".join(parts[:end]).endswith(self.modules_to_save) for end in range(1, len(parts) + 1))

    def _is_in_layers(self, module: str) -> bool:
        if self.layers is None:
            return True
        return layer_number(module, self.layers_pattern) in self.layers


def _read_peft(file: ConfigFile) -> AdapterConfig:
    kind = file.text("peft_type", "LORA")
    if kind != "LORA":
        raise AdapterError(f"{file.source}: 'peft_type' is {kind[:80]!r}; LORA is supported")
    for key, meaning in _REFUSED.items():
        if file.values.get(key):
            raise AdapterError(f"{file.source}: {key!r} is set, which is not supported: {meaning}")
    _check_initialisation(file)
    bias = file.text("bias", "none")
    if bias not in ("none", "all", "lora_only"):
        raise file.wrong("bias", "one of none, all, lora_only")
    targets, layers = _targets(file, "target_modules"), _layers(file)
    patterns = _texts(file, "layers_pattern")
    for pattern in patterns:
        check_pattern(pattern, f"{file.source}: 'layers_pattern'")
    if isinstance(targets, str) and (layers is not None or patterns):
        raise file.wrong("layers_to_transform", "absent where 'target_modules' is a string")
    if patterns and layers is None:
        raise file.wrong("layers_pattern", "absent without 'layers_to_transform'")
    config = AdapterConfig(
        source=file.source,
        values=file.values,
        rank=file.integer("r", DEFAULT_RANK),
        alpha=file.number("lora_alpha", DEFAULT_RANK),
        use_rslora=file.boolean("use_rslora", False),
        rank_pattern=_ranks(file),
        alpha_pattern=_alphas(file),
        targets=targets,
        excluded=_targets(file, "exclude_modules") or (),
        layers=layers,
        layers_pattern=patterns,
        bias=bias,  # type: ignore[arg-type]
        has_lora_bias=file.boolean("lora_bias", False),
        modules_to_save=_texts(file, "modules_to_save"),
        use_dora=file.boolean("use_dora", False),
        target_parameters=_texts(file, "target_parameters"),
        token_indices=_token_indices(file),
        invocation_tokens=tuple(file.integers("alora_invocation_tokens")) or None,
    )
    if config.use_dora and config.has_lora_bias:
        raise file.wrong("lora_bias", "false with 'use_dora'")
    known = {*_HONOURED, *_TRAINING, *_REFUSED}
    for key, value in file.values.items():
        if value and key not in known:
            raise AdapterError(
                f"{file.source}: field {key[:200]!r} = {json.dumps(value)[:80]} is not known{nearest(key, known)}; it "
                f"may change what the adapter computes: remove it from the file if it does not"
            )
    return config


def _check_initialisation(file: ConfigFile) -> None:
    """Raise for an adapter that belongs to other weights than those of its base model."""
    start = file.values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise AdapterError(
            f"{file.source}: 'init_lora_weights' is {start[:80]!r}, which changed the base weights; save the adapter "
            "with path_initial_model_for_weight_conversion, or set this to true if the base model is the changed one"
        )


def _targets(file: ConfigFile, key: str) -> str | tuple[str, ...] | None:
    """A regular expression, or endings of names."""
    if not isinstance(file.values.get(key), str):
        found = _texts(file, key)
        return found or None
    pattern = file.text(key)
    if pattern.lower() == ALL_LINEAR:
        return ALL_LINEAR
    check_pattern(pattern, f"{file.source}: {key!r}")
    return pattern


def _texts(file: ConfigFile, key: str) -> tuple[str, ...]:
    """A list of strings, or one of them."""
    if not file.has(key):
        return ()
    found = [file.text(key)] if isinstance(file.values[key], str) else file.texts(key)
    return tuple(_few(file, key, found))


def _layers(file: ConfigFile) -> tuple[int, ...] | None:
    key = "layers_to_transform"
    if not file.has(key):
        return None
    if isinstance(file.values[key], list):
        return tuple(_few(file, key, file.integers(key))) or None
    return (file.integer(key, minimum=0),)


def _ranks(file: ConfigFile) -> Mapping[str, int]:
    section = _patterns(file, "rank_pattern")
    return {} if section is None else {key: section.integer(key) for key in section.values}


def _alphas(file: ConfigFile) -> Mapping[str, float]:
    section = _patterns(file, "alpha_pattern")
    return {} if section is None else {key: section.number(key) for key in section.values}


def _patterns(file: ConfigFile, key: str) -> ConfigFile | None:
    """Values by regular expressions."""
    section = file.section(key)
    if section is not None:
        for pattern in _few(file, key, list(section.values)):
            check_pattern(pattern, f"{file.source}: {key!r}")
    return section


def _token_indices(file: ConfigFile) -> Mapping[str, tuple[int, ...]]:
    key = "trainable_token_indices"
    if not file.has(key) or not file.values[key]:
        return {}
    if isinstance(file.values[key], list):
        return {"embed_tokens": tuple(file.integers(key))}
    section = file.section(key)
    assert section is not None
    return {name: tuple(section.integers(name)) for name in section.values}


def _few(file: ConfigFile, key: str, found: Sequence[Any]) -> Sequence[Any]:
    if len(found) > MAX_ENTRIES:
        raise AdapterError(f"{file.source}: {key!r} has {len(found)} entries; at most {MAX_ENTRIES} are read")
    return found


def _read_mlx(file: ConfigFile) -> AdapterConfig:
    """mlx-lm's configuration, which has all options of the training besides."""
    kind = file.text("fine_tune_type", "lora")
    if kind not in ("lora", "dora"):
        raise AdapterError(f"{file.source}: 'fine_tune_type' is {kind[:80]!r}; lora and dora are supported")
    section = file.section("lora_parameters")
    if section is None:
        raise AdapterError(f"{file.source}: 'lora_parameters' is missing")
    return AdapterConfig(
        source=file.source,
        values={key: file.values[key] for key in ("fine_tune_type", "lora_parameters") if key in file.values},
        tool="mlx",
        rank=section.integer("rank", DEFAULT_RANK),
        scale=section.number("scale", 20.0),
        targets=_texts(section, "keys") or None,
        use_dora=kind == "dora" or file.boolean("use_dora", False),
    )

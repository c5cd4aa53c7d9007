"""Checkpoints of compressed-tensors: groups of modules, each with a scheme of its own.

Format: https://github.com/vllm-project/compressed-tensors, quantization/quant_config.py and quant_args.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.by_module import ByModule
from jaxllm.models.quantization.fp4_blocks import PACKED_MXFP4, PACKED_NVFP4, Fp4Blocks
from jaxllm.models.quantization.matrix_format import MatrixFormat
from jaxllm.models.quantization.module_names import REGEX, is_embedding, matches, read_names, without_tower
from jaxllm.models.quantization.packed_words import PackedWords
from jaxllm.models.quantization.scaled_values import ScaledValues, Sharing, whole_blocks
from jaxllm.pallas_kernels.linear.weight_type import Activations, Values

_OF_ACTIVATIONS = ("input_scale", "input_zero_point")


@dataclass(frozen=True)
class Rule:
    """A format, and which modules have it."""

    targets: tuple[str, ...]
    format: MatrixFormat


@dataclass(frozen=True)
class CompressedTensors(ByModule):
    """Rules of all groups, and modules that none of them means."""

    rules: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()

    def format_of(self, module: str) -> MatrixFormat | None:
        """See `ByModule`. Whole names come before expressions, and those before classes."""
        kind = "Embedding" if is_embedding(module) else "Linear"
        names, expressions = self._ignored
        if module in names or kind in names or any(matches(each, module) for each in expressions):
            return None
        named, formats = self._targets
        if module in named:
            return named[module]
        expressed = (form for expression, form in formats.items() if matches(expression, module))
        return next(expressed, named.get(kind))

    @cached_property
    def _ignored(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Names, and expressions."""
        names = frozenset(without_tower(text) for text in self.ignored if not text.startswith(REGEX))
        return names, tuple(_expression(text) for text in self.ignored if text.startswith(REGEX))

    @cached_property
    def _targets(self) -> tuple[Mapping[str, MatrixFormat], Mapping[str, MatrixFormat]]:
        """Formats by names, and by expressions in their order."""
        formats = {target: rule.format for rule in self.rules for target in rule.targets}
        ordered = sorted(formats)
        names = {without_tower(text): formats[text] for text in ordered if not text.startswith(REGEX)}
        return names, {_expression(text): formats[text] for text in ordered if text.startswith(REGEX)}


def _expression(target: str) -> str:
    return without_tower(target).removeprefix(REGEX)


def read_format(section: ConfigFile) -> CompressedTensors:
    """From the section of config.json. Raises `ModelError`, which names the field."""
    # For the scheme of the KV cache see `checkpoint.kv_scales`.
    section.ignore(
        "kv_cache_scheme",
        "version",
        "global_compression_ratio",
        "run_compressed",
        "dequantize",
        "use_optimized_inference",
    )
    if section.text("quantization_status", "compressed") != "compressed":
        raise section.wrong("quantization_status", "'compressed'")
    for key in ("sparsity_config", "transform_config", "moe_sparsity_config"):
        other = section.section(key)
        if other is not None and not (key == "sparsity_config" and other.text("format", "") == "dense"):
            raise section.wrong(key, "empty: transforms are not supported")
        if other is not None:
            other.ignore("*")
    groups = section.section("config_groups")
    if groups is None:
        raise ModelError(f"{section.source}: 'config_groups' is missing or empty")
    common = section.text("format", "")
    rules = tuple(_read_rule(group, common) for name in groups.values if (group := groups.section(name)))
    return CompressedTensors(rules, read_names(section, "ignore", prefix=REGEX))


def _read_rule(group: ConfigFile, common: str) -> Rule:
    name = group.text("format") if group.has("format") else common
    if name not in FORMATS:
        raise ModelError(f"{group.source}: 'format' must be one of {', '.join(FORMATS)}, found {name[:80]!r}")
    if group.section("output_activations"):
        raise group.wrong("output_activations", "null: quantized outputs are not supported")
    weights = group.section("weights")
    if weights is None:
        raise ModelError(f"{group.source}: 'weights' is missing; quantizing activations alone is not supported")
    weights.ignore("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
    if weights.has("dynamic") and weights.boolean("dynamic", False):
        raise weights.wrong("dynamic", "false")
    group.texts("targets")
    return Rule(read_names(group, "targets", prefix=REGEX), FORMATS[name](weights, group.section("input_activations")))


def _read_strategy(weights: ConfigFile) -> tuple[Sharing, tuple[int, int] | None]:
    """The part that shares a scale, and rows and columns of a group or block."""
    size = None
    if weights.has("group_size") and weights.values["group_size"] != -1:
        size = weights.integer("group_size")
    implied = "group" if size is not None else "channel" if weights.has("group_size") else "tensor"
    sharing = weights.text("strategy", implied).lower()
    if sharing not in ("tensor", "channel", "group", "block"):
        raise weights.wrong("strategy", "'tensor', 'channel', 'group' or 'block'")
    if sharing == "group" and size is None:
        raise weights.wrong("group_size", "a positive integer, for strategy 'group'")
    block = (1, size) if sharing == "group" and size is not None else None
    if sharing == "block":
        block = whole_blocks(f"{weights.source}: 'block_structure'", _read_block(weights))
    elif weights.has("block_structure"):
        raise weights.wrong("block_structure", "null, unless 'strategy' is 'block'")
    return cast(Sharing, sharing), block


def _read_block(weights: ConfigFile) -> list[int]:
    """As a list, or as older ones have it, "128x128"."""
    value = weights.values.get("block_structure")
    if not isinstance(value, str):
        return weights.integers("block_structure")
    sizes = weights.text("block_structure").split("x")
    if not all(size.isdecimal() for size in sizes):
        raise weights.wrong("block_structure", "two positive integers")
    return [int(size) for size in sizes]


def _read_activations(inputs: ConfigFile | None, weights: ConfigFile, sharing: Sharing) -> Activations:
    """How they are rounded: as the checkpoint says where products of these types are computed, else not at all.

    That is the case for symmetric ones of 8 bits of the weights' own type, alongside one scale for each output.
    Anything else that is rounded less than the checkpoint allows is closer to what was rounded.
    """
    if inputs is None:
        return Activations.AS_THEY_ARE
    inputs.ignore("observer", "observer_kwargs", "scale_dtype", "zp_dtype", "group_size", "block_structure", "actorder")
    kind, bits = inputs.text("type", "int").lower(), inputs.integer("num_bits", 8)
    strategy = inputs.text("strategy", "tensor").lower()
    dynamic, symmetric = inputs.values.get("dynamic", False), inputs.boolean("symmetric", True)
    if kind not in ("int", "float"):
        raise inputs.wrong("type", "'int' or 'float'")
    if strategy not in ("token", "tensor", "group", "tensor_group"):
        raise inputs.wrong("strategy", "'token', 'tensor' or 'group'")
    if dynamic != "local":
        dynamic = inputs.boolean("dynamic", False)
    else:
        inputs.text("dynamic")
    is_same = bits == 8 == weights.integer("num_bits", 8) and kind == weights.text("type", "int").lower()
    if not (is_same and symmetric and sharing in ("tensor", "channel") and strategy in ("token", "tensor")):
        return Activations.AS_THEY_ARE
    return Activations.PER_TOKEN if dynamic else Activations.STATIC


def _scaled_values(weights: ConfigFile, inputs: ConfigFile | None) -> ScaledValues:
    sharing, block = _read_strategy(weights)
    kind, bits = weights.text("type", "int").lower(), weights.integer("num_bits", 8)
    if kind not in ("int", "float") or bits > 8 or (kind == "float" and bits != 8):
        raise weights.wrong("num_bits", "8 for type 'float', and at most 8 for 'int'")
    has_zeros = not weights.boolean("symmetric", True)
    if has_zeros and kind == "float":
        raise weights.wrong("symmetric", "true for type 'float'")
    if weights.has("actorder") and weights.values["actorder"] not in (False, "weight", "static"):
        raise weights.wrong("actorder", "null, 'weight' or 'static' unless numbers are packed")
    weights.ignore("actorder")
    activations = _read_activations(inputs, weights, sharing)
    values = Values.INT8 if kind == "int" else Values.FLOAT8_E4M3
    ignored = _OF_ACTIVATIONS[1:] if activations == Activations.STATIC else _OF_ACTIVATIONS
    return ScaledValues(values, sharing, block, has_zeros, activations, ignored=ignored)


def _packed_words(weights: ConfigFile, inputs: ConfigFile | None) -> PackedWords:
    sharing, block = _read_strategy(weights)
    bits = weights.integer("num_bits", 8)
    if weights.text("type", "int").lower() != "int":
        raise weights.wrong("type", "'int' in format 'pack-quantized'")
    if bits not in (4, 8):
        raise weights.wrong("num_bits", "4 or 8 in format 'pack-quantized'")
    if sharing not in ("channel", "group"):
        raise weights.wrong("strategy", "'channel' or 'group' in format 'pack-quantized'")
    order = weights.values.get("actorder")
    if order not in (None, False, "weight", "static", "group", "dynamic"):
        raise weights.wrong("actorder", "null, 'weight', 'static', 'group' or 'dynamic'")
    weights.ignore("actorder")
    _read_activations(inputs, weights, "group")
    return PackedWords(
        bits,
        None if block is None else block[1],
        not weights.boolean("symmetric", True),
        is_reordered=order in ("group", "dynamic"),
        ignored=_OF_ACTIVATIONS,
    )


def _fp4(form: Fp4Blocks) -> Callable[[ConfigFile, ConfigFile | None], MatrixFormat]:
    """The reader of a format whose blocks are of one size."""

    def read(weights: ConfigFile, inputs: ConfigFile | None) -> MatrixFormat:
        group = form.kind.group
        if weights.integer("num_bits", 4) != 4 or weights.text("type", "float").lower() != "float":
            raise weights.wrong("num_bits", "4 of type 'float'")
        if weights.integer("group_size", group) != group:
            raise weights.wrong("group_size", f"{group} in this format")
        if not weights.boolean("symmetric", True):
            raise weights.wrong("symmetric", "true for type 'float'")
        if weights.text("strategy", "group").lower() not in ("group", "tensor_group"):
            raise weights.wrong("strategy", "'group' or 'tensor_group'")
        if weights.has("actorder") and weights.values["actorder"] not in (False, "weight", "static"):
            raise weights.wrong("actorder", "null, 'weight' or 'static' in this format")
        if weights.has("block_structure"):
            raise weights.wrong("block_structure", "null in this format")
        weights.ignore("actorder", "block_structure")
        _read_activations(inputs, weights, "group")
        return form

    return read


FORMATS: Mapping[str, Callable[[ConfigFile, ConfigFile | None], MatrixFormat]] = {
    "int-quantized": _scaled_values,
    "float-quantized": _scaled_values,
    "naive-quantized": _scaled_values,
    "pack-quantized": _packed_words,
    "nvfp4-pack-quantized": _fp4(PACKED_NVFP4),
    "mxfp4-pack-quantized": _fp4(PACKED_MXFP4),
}
"""By the name of a format: its reader, from what is said about weights and about activations."""

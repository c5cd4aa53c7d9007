"""The tensors of a quantized copy of a checkpoint, known by the headers of its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax import nnx

from jaxllm.models.causal_lm import abstract_model, checkpoint_names
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.matching import match
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.other_formats import is_gguf
from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.checkpoint.safetensors_writer import Entry
from jaxllm.models.checkpoint.tensor_source import Fused, Interleaved, Whole
from jaxllm.models.checkpoint.weight_target import Slots, Specs, WeightTarget
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.models.options import ForwardOptions
from jaxllm.models.quantization.compressed_scheme import FORMATS, Scheme, can_write, scheme_for
from jaxllm.models.quantization.module_names import is_embedding
from jaxllm.models.quantization.module_tensors import RAW_TYPES
from jaxllm.models.quantization.online import quantized

_WEIGHT = ".weight"
_EXPERTS, _ALL_EXPERTS = ".experts.", r"re:.*\.experts(\.|$)"


@dataclass(frozen=True)
class Copied:
    """A tensor of a checkpoint, and how it becomes a matrix of few bits, if it does."""

    tensor: Tensor
    scheme: Scheme | None = None

    @property
    def module(self) -> str:
        """The module that the matrix belongs to."""
        return self.tensor.name.removesuffix(_WEIGHT)

    @property
    def entries(self) -> list[Entry]:
        """The tensors that it becomes."""
        tensor = self.tensor
        if self.scheme is None:
            # One whose values do not lie one after another takes more in its file.
            num_bytes = tensor.num_bytes if type(tensor) is Tensor else tensor.size * RAW_TYPES[tensor.dtype].itemsize
            return [Entry(tensor.name, tensor.dtype, tensor.shape, num_bytes)]
        return self.scheme.entries(self.module, (tensor.shape[0], tensor.shape[1]))

    @property
    def num_bytes(self) -> int:
        """Bytes after the conversion."""
        return sum(entry.num_bytes for entry in self.entries)


@dataclass(frozen=True)
class ExportPlan:
    """All tensors of the checkpoint in `folder` as the copy has them, and its config.json."""

    folder: Path
    tensors: Sequence[Copied]
    config: Mapping[str, Any]
    left: Sequence[str]
    """Names of layers' matrices that stay as they are though they are multiplied with: packed experts, those
    stored as [in, out], or with inputs that no group divides."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors of the copy."""
        return sum(each.num_bytes for each in self.tensors)


def plan_export(folder: Path, method: str) -> ExportPlan:
    """How the checkpoint in `folder` becomes one of compressed-tensors. Nothing but headers is read.

    The embedding, the output layer, routers, norms, and biases are copied. Those matrices of layers are quantized that
    are linear layers' in the checkpoint: 2-D, [out, in], those of experts only if each expert has its own.

    Raises `ModelError` for a checkpoint that cannot be read, is quantized already, or is that of no generating model.
    """
    config = read_config(folder)
    family = registry.lookup(config.architecture)
    if family.use != "generate" or family.make_encoder is not None:
        raise ModelError(f"{folder}: {config.architecture} is not a generative model; only these can be quantized")
    if config.weight_method is not None:
        raise ModelError(
            f"{folder}: the checkpoint is already quantized, with {config.weight_method!r}; give an unquantized one"
        )
    names = checkpoint_names(config, ForwardOptions())
    slots, specs = _places(config, names, method)
    tensors = Checkpoint(folder).tensors
    # What loading would reject.
    match(tensors, names, specs, slots, str(folder))
    if any(is_gguf(tensor.path) for tensor in tensors):
        raise ModelError(f"{folder}: GGUF files are not supported; give the checkpoint they were made from")
    found = {names.new_name(tensor.name): tensor for tensor in tensors}
    meant = [name for name, own in slots.items() if any(specs[slot.path].matrix is not None for slot in own)]
    linear = {name for name in meant if name in found and _is_linear(found[name], slots[name], specs)}
    done = {name for name in linear if can_write(method, found[name].shape[1])}
    if any(name not in done and _is_of_expert(slots[name]) for name in meant):
        # vLLM has one scheme for all of an expert.
        done = {name for name in done if not _is_of_expert(slots[name])}
    if not done:
        raise ModelError(f"{folder}: contains no matrix [out, in] of a linear layer that can be quantized")
    scheme = scheme_for(method, {found[name].shape[1] for name in done})
    copied = [Copied(tensor, scheme if name in done else None) for name, tensor in found.items()]
    left = [name for name in meant if name not in done]
    section = _section(method, scheme, _ignored(copied, slots, done, left))
    return ExportPlan(folder, copied, _config(folder, config, section), left)


def _places(config: ModelConfig, names: CheckpointNames, method: str) -> tuple[Slots, Specs]:
    """Where tensors would go in a model whose layers are quantized, and what is there."""
    model = abstract_model(quantized(config, names.names, method, tables=False), ForwardOptions(), config.dtype)
    specs = {path: ParameterSpec.of(variable) for path, variable in nnx.to_flat_state(nnx.state(model))}
    return names.slots(specs), specs


def _is_linear(tensor: Tensor, own: Sequence[WeightTarget], specs: Specs) -> bool:
    """Whether a tensor is the matrix [out, in] of a linear layer that can have few bits; its slots are `own`."""
    if not own or len(tensor.shape) != 2 or not tensor.name.endswith(_WEIGHT):
        return False
    return all(
        specs[slot.path].matrix is not None and isinstance(slot.take, Whole | Fused | Interleaved) for slot in own
    )


def _ignored(copied: Sequence[Copied], slots: Slots, done: set[str], left: Sequence[str]) -> list[str]:
    """Modules that 'Linear' would mean, and that are none of the matrices of few bits.

    They include tensors of parts that are not read here, such as vision towers.
    """
    names = {each.tensor.name for each in copied if each.scheme is None and len(each.tensor.shape) == 2}
    names |= {name for name, own in slots.items() if name not in done and len(own[0].shape) == 2}
    modules = {name.removesuffix(_WEIGHT) for name in (*names, *left) if name.endswith(_WEIGHT) or name in left}
    modules = {module for module in modules if not is_embedding(module)}
    if any(_is_of_expert(slots[name]) for name in left):
        # There may be thousands, and none of them is quantized.
        modules = {module for module in modules if _EXPERTS not in module} | {_ALL_EXPERTS}
    return ["lm_head", *sorted(modules - {"lm_head"})]


def _is_of_expert(own: Sequence[WeightTarget]) -> bool:
    return any(slot.part is not None and slot.part.expert is not None for slot in own)


def _section(method: str, scheme: Scheme, ignored: list[str]) -> dict[str, Any]:
    """The options of config.json."""
    group = {
        "targets": ["Linear"],
        "weights": scheme.weights,
        "input_activations": scheme.input_activations,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": FORMATS[method],
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignored,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _config(folder: Path, config: ModelConfig, section: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint's own, with the section; and with the type of what is not quantized, which was a guess."""
    values = ConfigFile.read(folder / "config.json").values
    has_type = values.get("dtype") or values.get("torch_dtype")
    return {**values, **({} if has_type else {"torch_dtype": config.dtype}), "quantization_config": section}

"""Names of an adapter's tensors, as the tools that people train with write them.

PEFT puts `base_model.model.` before the module and `.default` or another adapter's name after `lora_A`; wrappers for
parallel or compiled models, and for models that also see, put names of their own before or between.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from jaxllm.models.adapters.errors import AdapterError

Role = Literal["a", "b", "b_bias", "magnitude", "token_rows", "weight", "bias", "unused"]
"""What a tensor is to its module: a part of the low-rank product, or what stands in the place of its own."""

_INSIDE: Final = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")
"""Names that wrappers put anywhere."""

_BEFORE: Final = (
    "backbone",
    "base_model",
    "decoder",
    "encoder",
    "gpt_neox",
    "language_model",
    "llm",
    "model",
    "module",
    "text_model",
    "transformer",
)
"""Names of wrappers, and of the whole inside of a model, that come before those of its modules."""

_LOW_RANK: Final = re.compile(
    r"(?P<module>.+)\.(?P<what>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.(?P<adapter>[^.]+?))??(?P<end>\.weight|\.bias)?"
)
_TOKEN_ROWS: Final = re.compile(r"(?P<module>.+?)\.(?:token_adapter\.)?trainable_tokens_delta(?:\.[^.]+)?")
_SAVED: Final = re.compile(
    r"(?P<module>.+)\.modules_to_save(?:\.(?!weight$|bias$)[^.]+)?(?P<inside>(?:\..+)?)\.(?P<end>weight|bias)"
)
_PLAIN: Final = re.compile(r"(?P<module>.+?)(?:\.base_layer)*\.(?P<end>weight|bias)")
_MLX: Final = re.compile(r"(?P<module>.+)\.(?P<what>lora_a|lora_b|m)")
_ROLES: Final[Mapping[str, Role]] = {
    "lora_A": "a",
    "lora_B": "b",
    "lora_a": "a",
    "lora_b": "b",
    "lora_magnitude_vector": "magnitude",
    "m": "magnitude",
}


@dataclass(frozen=True)
class TensorName:
    """What a tensor's name says: the module's name, as the tool has it, and what the tensor is to that."""

    module: str
    role: Role
    is_embedding: bool = False
    """Whether the module is an embedding, whose A is [r, V] and whose B is [D, r]."""
    is_transposed: bool = False
    """Whether A is [in, r] and B [r, out], as mlx has them."""


def parse_name(name: str, *, is_mlx: bool) -> TensorName | None:
    """Take a tensor's name apart; None for one of another form."""
    if is_mlx:
        found = _MLX.fullmatch(name)
        return None if found is None else TensorName(found["module"], _ROLES[found["what"]], is_transposed=True)
    name = ".".join(part for part in name.split(".") if part not in _INSIDE)
    name = name.removeprefix("base_model.model.")
    if found := _LOW_RANK.fullmatch(name):
        what, is_bias = found["what"], found["end"] == ".bias"
        if what.startswith("lora_embedding"):
            return (
                None if is_bias else TensorName(found["module"], "b" if what.endswith("A") else "a", is_embedding=True)
            )
        role = _ROLES[what]
        if is_bias:
            return TensorName(found["module"], "b_bias") if role == "b" else None
        return TensorName(found["module"], role)
    if found := _TOKEN_ROWS.fullmatch(name):
        return TensorName(found["module"], "token_rows")
    if ".original_module." in name:
        return TensorName(name, "unused")
    if found := _SAVED.fullmatch(name):
        return TensorName(found["module"] + found["inside"], found["end"])  # type: ignore[arg-type]
    found = _PLAIN.fullmatch(name)
    return None if found is None else TensorName(found["module"], found["end"])  # type: ignore[arg-type]


def core_of(module: str) -> str:
    """A module's name without what comes before those inside of a model."""
    parts = module.split(".")
    while len(parts) > 1 and parts[0] in _BEFORE:
        parts = parts[1:]
    return ".".join(parts)


class ModuleNames:
    """The modules of a model, by the names that its checkpoints and other tools have for them."""

    def __init__(self, modules: Iterable[str], prefix: str = "") -> None:
        """`prefix` is what names of a bare model lack."""
        self._known, self._prefix = set(modules), prefix
        self._by_core: dict[str, list[str]] = {}
        for module in self._known:
            self._by_core.setdefault(core_of(module.removeprefix(prefix)), []).append(module)

    def find(self, module: str) -> str | None:
        """The model's own name of a module; None where it has none. Raises `AdapterError` where it may be several."""
        if module in self._known:
            return module
        found = self._by_core.get(core_of(module.removeprefix(self._prefix)), [])
        if len(found) > 1:
            raise AdapterError(f"module {module!r} may be {' or '.join(map(repr, sorted(found)))}")
        return found[0] if found else None

"""How a checkpoint calls the tensors of a model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jaxllm.models.checkpoint.tensor_source import Source, source_of
from jaxllm.models.checkpoint.weight_target import Slots, Specs, checkpoint_slots

if TYPE_CHECKING:
    from jaxllm.models.quantization.format import Format


@dataclass(frozen=True, kw_only=True)
class CheckpointNames:
    """A family's facts about its checkpoints."""

    names: Mapping[str, str | Source]
    """Where the tensors of each module are, by its name; `*` is the layer's number."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of names that are read as others."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Parts of modules' names in transformers, between dots, where checkpoints have others, or "" for none."""
    omitted: str = ""
    """What may stand before the end of a name and is left out."""
    ignored: Sequence[str] = ()
    """Endings of names of tensors that may be there without being used."""
    ignored_beginnings: Sequence[str] = ()
    """Beginnings of such names, unless a module has the tensor."""
    optional_prefix: str = ""
    """The prefix that a checkpoint may omit from all its names."""
    known_format: "Format | None" = None
    """How it keeps matrices of few bits. One that is to become such a matrix, and is none there, is rounded."""
    first_layer: int = 0
    """The number of the first layer of a part of a model."""
    elsewhere: Callable[[str], bool] | None = None
    """Which tensors may be there for other parts of the model."""
    apart: Sequence[str] = ()
    """Parts of the model, by the first of their modules' names, whose weights are in other checkpoints."""

    def new_name(self, name: str) -> str:
        """A tensor's name with another beginning, if it has one that is `renamed`; the longest counts."""
        if self.omitted:
            module, dot, end = name.rpartition(".")
            name = f"{module.removesuffix(self.omitted)}{dot}{end}"
        for old in sorted(self.renamed, key=len, reverse=True):
            if name.startswith(old):
                return self.renamed[old] + name.removeprefix(old)
        return name

    def spellings(self, module: str) -> Iterator[str]:
        """What checkpoints may call a module that transformers, or a tool that builds on it, calls so."""
        yield self.new_name(f"{module}.").removesuffix(".")
        yield module
        name = f".{module}."
        for theirs, ours in self.synonyms.items():
            name = name.replace(f".{theirs}.", f".{ours}." if ours else ".")
        yield name[1:-1]

    def may_ignore(self, name: str) -> bool:
        """Whether a tensor that no module has may be there."""
        return name.endswith(tuple(self.ignored)) or name.startswith(tuple(self.ignored_beginnings))

    def as_in(self, tensors: Iterable[str]) -> "CheckpointNames":
        """The names without the optional prefix, if none of a checkpoint's tensors has it."""
        prefix = self.optional_prefix
        if not prefix or any(self.new_name(name).startswith(prefix) for name in tensors):
            return self
        names = {module: _without(prefix, source_of(source)) for module, source in self.names.items()}
        return replace(self, names=names, optional_prefix="")

    def slots(self, specs: Specs) -> Slots:
        """Where each tensor goes. Raises `ModelError` for a module that the names lack."""
        return checkpoint_slots(specs, self.names, self.first_layer)


def _without(prefix: str, source: Source) -> Source:
    return replace(source, name=source.name.removeprefix(prefix))

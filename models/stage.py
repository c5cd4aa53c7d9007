"""A part of a model's layers, for an engine that has its layers on several meshes, one after the other."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jaxllm.models.checkpoint.tensor_source import Source, source_of
from jaxllm.models.config import ModelConfig


@dataclass(frozen=True)
class Stage:
    """Layers `start` to `stop` of the `total` that a model has.

    The first stage has the embedding, the last one the final norm and the output layer.
    """

    start: int
    stop: int
    total: int

    @property
    def is_first(self) -> bool:
        """Whether it takes tokens, not hidden states."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it gives logits, not hidden states."""
        return self.stop == self.total

    def of(self, config: ModelConfig) -> ModelConfig:
        """The model as far as it is in this stage."""
        return replace(config, layers=config.layers[self.start : self.stop])

    def elsewhere(self, names: Mapping[str, str | Source]) -> Callable[[str], bool]:
        """Whether a tensor is another stage's, if it is not this one's; `names` are those of `Family`."""
        sources = [source_of(name) for name in names.values()]
        here: dict[str, set[str]] = {}
        others: dict[str, set[str]] = {}
        for source in sources:
            prefix, found, _ = source.name.partition("*")
            if found:
                numbers = [str(number) for number in source.layers or range(self.total)]
                here.setdefault(prefix, set()).update(numbers[self.start : self.stop])
                others.setdefault(prefix, set()).update(numbers)
        layer_of = re.compile(f"({'|'.join(map(re.escape, here))})([^.]+)\\.") if here else None
        of_ends = tuple(f"{source.name}." for source in sources if "*" not in source.name)

        def is_elsewhere(name: str) -> bool:
            match = layer_of.match(name) if layer_of is not None else None
            if match is None:
                return name.startswith(of_ends)
            return match[2] in others[match[1]] - here[match[1]]

        return is_elsewhere

"""How a checkpoint calls the tensors of a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxllm.models.checkpoint.source import Source

if TYPE_CHECKING:
    from jaxllm.models.quantization.format import Format


@dataclass(frozen=True, kw_only=True)
class CheckpointNames:
    """What a family knows of its checkpoints; fields are as in `load_into`."""

    names: Mapping[str, str | Source]
    renamed: Mapping[str, str]
    ignored: Sequence[str] = ()
    ignored_beginnings: Sequence[str] = ()
    known_format: "Format | None" = None
    first_layer: int = 0
    elsewhere: Callable[[str], bool] | None = None

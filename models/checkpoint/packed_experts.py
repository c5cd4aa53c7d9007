"""Experts that a checkpoint keeps in one tensor where a family names the tensors of each.

As Qwen3.5 has them, `experts.gate_up_proj` [E, 2 F, D] holds each expert's gate above what it gates, and
`experts.down_proj` [E, D, F] what comes after. Each expert's part is a range of the file's bytes.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from jaxllm.models.checkpoint.safetensors_file import Tensor

_PARTS = {".experts.gate_up_proj": ("gate_proj", "up_proj"), ".experts.down_proj": ("down_proj",)}
"""Names of each expert's parts, one above the other."""


def with_experts_apart(tensors: dict[str, Tensor], wanted: Container[str]) -> dict[str, Tensor]:
    """The tensors by name, those of all experts as one for each, where these are wanted."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        parts = next((parts for ending, parts in _PARTS.items() if name.endswith(ending)), ())
        is_packed = parts and tensor.is_in_order and len(tensor.shape) == 3 and name not in wanted
        apart = list(_apart(name, tensor, parts)) if is_packed else []
        is_wanted = bool(apart) and all(each.name in wanted for each in apart)
        found |= {each.name: each for each in apart} if is_wanted else {name: tensor}
    return found


def _apart(name: str, tensor: Tensor, parts: tuple[str, ...]) -> Iterator[Tensor]:
    """The tensors of each expert; none where the rows are no whole number of parts."""
    experts, rows, columns = tensor.shape
    count = experts * len(parts)
    if count == 0 or rows % len(parts):
        return
    size = (tensor.end - tensor.start) // count
    block = name.rpartition(".")[0]
    for number in range(count):
        expert, part = divmod(number, len(parts))
        start = tensor.start + number * size
        yield replace(
            tensor,
            name=f"{block}.{expert}.{parts[part]}.weight",
            shape=(rows // len(parts), columns),
            start=start,
            end=start + size,
        )

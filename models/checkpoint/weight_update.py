"""New weights for a model whose parameters are on the devices, tensor by tensor, in the order in which they come."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx

from jaxllm.models.checkpoint.host_parameter import whole_parameter
from jaxllm.models.checkpoint.leaves import leaf_specs
from jaxllm.models.checkpoint.matching import match
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.parameter_loader import Progress, load_arrays
from jaxllm.models.checkpoint.parameter_reloader import ParameterReloader, check_names
from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.checkpoint.weight_target import ParameterPath

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.matching import Matched

Leaves = tuple[jax.Array, ...]


class WeightUpdate:
    """Takes tensors, and gives the parameters.

    Tensors go the way that those of a checkpoint go at the start: they are merged, packed and rounded alike. Beyond the
    parameters, the devices hold one of them, or one tensor, at a time.
    """

    def __init__(self, model: nnx.Module, names: CheckpointNames, leaves: Leaves | None) -> None:
        """`model` has shapes for parameters; `leaves` are what it has, or None where all are to come.

        They are this object's until `leaves` gives them back.
        """
        specs = leaf_specs(model)
        # Scales of keys and values are no weights, but they lie alongside them.
        self._sought = {
            path: spec for path, spec in specs.items() if path[-1] != "kv_scales" and path[0] not in names.apart
        }
        self._specs, self._names = specs, names
        self.slots = names.slots(self._sought)
        arrays = {} if leaves is None else dict(zip(specs, leaves, strict=True))
        self._reloader = ParameterReloader(specs, arrays)
        self._seen: set[str] = set()

    @property
    def has_changed(self) -> bool:
        """Whether a parameter is another one than before."""
        return self._reloader.has_changed

    def match(self, tensors: Sequence[Tensor], source: str, *, is_whole: bool = False) -> "Matched":
        """Those tensors that this model wants, checked by name, shape and type. Raises `ModelError`.

        `is_whole`: none may be missing.
        """
        return match(tensors, self._names, self._sought, self.slots, source, is_part=not is_whole)

    def take(self, matched: "Matched", progress: Progress | None = None) -> None:
        """Replace what `match` found. Raises `ModelError`; what came before the tensor that it names stays replaced."""
        check_names([self._names.new_name(tensor.name) for tensor, _ in matched], self._seen)
        load_arrays(matched, self._sought, progress, self._reloader)

    def take_scales(self, scales: Mapping[ParameterPath, np.ndarray]) -> None:
        """Replace the scales of keys and values, by the path of their parameter."""
        for path, values in scales.items():
            self._reloader.arrays[path] = whole_parameter(self._specs[path], values)

    def take_apart(self, arrays: Mapping[ParameterPath, jax.Array]) -> None:
        """Add parameters that are in another checkpoint than the model's, by their paths."""
        self._reloader.arrays.update(arrays)

    @property
    def lacks_apart(self) -> bool:
        """Whether those parameters are to come, too."""
        return any(path not in self._reloader.arrays for path in self._specs if path[0] in self._names.apart)

    def take_saved(self, saved: Iterable[tuple[ParameterPath, Callable[[], jax.Array]]]) -> None:
        """Replace parameters by whole ones, each made when the old one is gone; these are all there are."""
        for path, make in saved:
            self._reloader.replace(path, make)
        self._seen |= self.slots.keys()

    def finish(self) -> None:
        """No more tensors come. Raises `ModelError` where a parameter lacks some."""
        self._reloader.finish()

    @property
    def is_whole(self) -> bool:
        """Whether every tensor of the model has been given."""
        return self.slots.keys() <= self._seen

    @property
    def leaves(self) -> Leaves | None:
        """The parameters, in the order of the programs' arguments; None where some have no values."""
        arrays = self._reloader.arrays
        if any(path not in arrays for path in self._specs):
            return None
        return tuple(arrays[path] for path in self._specs)

    def missing(self) -> list[str]:
        """Names of the parameters without values."""
        return self._reloader.missing()

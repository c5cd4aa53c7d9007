"""Formats in which every quantized matrix has tensors of its own, named after its module."""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.format import Format, MatrixTensor
from jaxllm.models.quantization.matrix_format import MatrixFormat
from jaxllm.models.quantization.module_names import ROUTERS
from jaxllm.models.quantization.module_tensors import FLOATS, ModuleTensors
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix, WeightType

_WEIGHT = ".weight"
_ENDINGS = frozenset({
    "activation_scale",
    "g_idx",
    "input_global_scale",
    "input_scale",
    "input_zero_point",
    "qweight",
    "qzeros",
    "scales",
    "weight",
    "weight_g_idx",
    "weight_global_scale",
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_shape",
    "weight_zero_point",
})  # fmt: skip
"""The endings after a module's name in the names of a quantized matrix's tensors."""


@dataclass(frozen=True)
class ModuleMatrix(MatrixTensor):
    """The matrix of a module, and how its tensors make it."""

    tensors: ModuleTensors
    format: MatrixFormat

    def read(self) -> QuantizedMatrix:
        """See `MatrixTensor`."""
        return self.format.read(self.tensors, self.shape)


@dataclass(frozen=True)
class ByModule(Format):
    """Which module has which format."""

    @property
    def reads_ordinary(self) -> bool:
        """Whether ordinary matrices of modules with a format are rounded while they are read."""
        return False

    @abstractmethod
    def format_of(self, module: str) -> MatrixFormat | None:
        """How the checkpoint keeps the matrix of a module, by its name there; None: not quantized."""

    def format_found(self, module: str, endings: Collection[str]) -> MatrixFormat | None:
        """The same, where the module has tensors with these endings, for such as the configuration does not name."""
        return self.format_of(module)

    def weight_type(self, name: str) -> WeightType | None:
        """See `Format`."""
        found = self.format_of(name.removesuffix(_WEIGHT)) if name.endswith(_WEIGHT) else None
        return None if found is None else found.kind

    def matrices(self, tensors: Mapping[str, Tensor], wanted: Collection[str]) -> Mapping[str, MatrixTensor]:
        """See `Format`."""
        by_module: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            module, _, ending = name.rpartition(".")
            if ending in _ENDINGS:
                by_module.setdefault(module, {})[ending] = tensor
        found: dict[str, MatrixTensor] = {}
        for name in wanted:
            module = name.removesuffix(_WEIGHT)
            own = by_module.get(module, {})
            if not name.endswith(_WEIGHT) or not own:
                continue
            form = self.format_found(module, own)
            if form is None or (is_ordinary(own) and is_never_quantised(module, own["weight"])):
                continue
            if is_ordinary(own) and not self.reads_ordinary:
                raise ModelError(
                    f"{own['weight'].path}: tensor {name!r} has type {own['weight'].dtype}, but the configuration "
                    f"declares it as quantized, as {form.kind}"
                )
            found[name] = _matrix(name, ModuleTensors(module, own), form)
        return found


def is_never_quantised(module: str, tensor: Tensor) -> bool:
    """Whether an ordinary tensor may be there whatever the configuration says of all matrices: norms, routers."""
    return len(tensor.shape) != 2 or module.endswith(ROUTERS)


def is_ordinary(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a module's tensors are those of one that is not quantized."""
    return tensors.keys() == {"weight"} and tensors["weight"].dtype in FLOATS


def _matrix(name: str, tensors: ModuleTensors, form: MatrixFormat) -> ModuleMatrix:
    shape, parts = form.shape_of(tensors), tensors.tensors.values()
    try:
        needed = form.tensors(shape)
    except ModelError as error:
        raise ModelError(f"{next(iter(parts)).path}: matrix {name!r}: {error}") from None
    tensors.check(needed)
    return ModuleMatrix(
        name,
        next(iter(parts)).path,
        shape,
        form.kind,
        sum(tensor.end - tensor.start for tensor in parts),
        tuple(f"{tensors.module}.{ending}" for ending in tensors.tensors),
        tensors,
        form,
    )

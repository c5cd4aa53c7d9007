"""The declaration of an operation's kernels: see `jaxllm.executor.kernels.select`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jaxllm.config.engine_info import Operation
from jaxllm.models.config import ModelConfig
from jaxllm.models.kv_type import KVCacheType

Shape = TypeVar("Shape")
"""Properties of the model that decide which kernel an operation gets, apart from the device."""


@dataclass(frozen=True)
class Workload:
    """What kernels are chosen for."""

    device: Any
    """A `jax.Device`: one of a mesh, whose devices are alike."""
    model: ModelConfig
    page_size: int
    kv_cache: KVCacheType
    sees_spans: bool = False
    """Whether tokens may see later ones, see `ResolvedConfig.sees_spans`."""
    dtype: str = "bfloat16"
    """Type of activations."""


@dataclass(frozen=True)
class Kernel(Generic[Shape]):
    """An implementation for one platform. 'xla' and 'reference' run everywhere and need none."""

    name: str
    platform: str
    refusal: Callable[[Any, Shape], str | None] = lambda device, shape: None
    """Why it cannot serve a shape on a device, as in 'needs pages of 16 tokens'; None if it can."""
    is_fastest: Callable[[Shape], bool] = lambda shape: True
    """Whether 'auto' takes it where it can serve."""


@dataclass(frozen=True)
class OperationKernels(Generic[Shape]):
    """The kernels of an operation, and what the choice between them depends on."""

    operation: Operation
    """The option of the choice has its name: 'attention' has `attention_backend`."""
    kernels: tuple[Kernel[Shape], ...]
    """The fastest first."""
    shape_of: Callable[[Workload], Shape]
    is_used: Callable[[Shape], bool] = lambda shape: True
    """Whether the model has such an operation: else the choice is 'xla', which is never called."""
    check: Callable[[str, Shape], None] = lambda platform, shape: None
    """Raises `ConfigError` for a shape that no implementation serves on a platform."""

    @property
    def option(self) -> str:
        """Name of the option."""
        return option_of(self.operation)


def option_of(operation: Operation) -> str:
    """The field of `CompileOptions` that names an operation's implementation."""
    return f"{operation}_backend"

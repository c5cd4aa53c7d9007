"""The chip that kernels for TPUs are compiled for."""

from dataclasses import dataclass

from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.chips import CHIPS

_MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """The chip that is compiled for."""

    chip: str
    """Name in `chips.CHIPS`."""
    vmem_bytes: int
    device_kind: str | None = None
    """Device kind whose measured block sizes are used."""


def target() -> Target:
    """The chip of the present mesh or of the default device; a v6e where that is no TPU (the interpreter)."""
    if not pltpu.is_tpu_device():
        return Target("v6e", 128 * _MIB, "cpu")
    info = pltpu.get_tpu_info()
    version = str(info.chip_version)
    name = {"7x": "tpu7x"}.get(version, version)
    return Target(name, info.vmem_capacity_bytes, CHIPS[name].device_kind if name in CHIPS else None)

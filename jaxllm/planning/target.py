"""The devices that one plans or compiles for: those of this machine, or a TPU topology that need not be there."""

import logging
import math
import os
from dataclasses import dataclass
from typing import Any

from jaxllm.errors import ConfigError, nearest
from jaxllm.pallas_kernels.chips import CHIPS, Chip, chip_of

HERE = "this machine"

_ENVIRONMENT = {
    # Devices that are there are not touched: another process may be using them.
    "JAX_PLATFORMS": "cpu",
    # libtpu must not ask a cloud machine's metadata which TPU it is on, nor claim it.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Any type does: the topology is described below. Without one libtpu complains on the terminal.
    "TPU_ACCELERATOR_TYPE": "v6e-8",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

_HOST_SIZES = {"v5e": {1: "1x1", 4: "2x2", 8: "2x4"}, "v6e": {1: "1x1", 4: "2x2", 8: "2x4"}}
"""Chips of one host and their topology, where that is not the chip's usual one alone."""

_USUAL_HOST = 4
"""Chips of a host. A process may be given fewer of them (`TPU_VISIBLE_CHIPS`)."""


@dataclass(frozen=True)
class TargetDevices:
    """Devices to plan or compile for. `absent` ones cannot run anything; `chip` is None where its figures are unknown.

    `topology` is as one writes it (`2x4`), empty for this machine.
    """

    devices: tuple[Any, ...]
    absent: bool
    chip: Chip | None
    topology: str

    @property
    def name(self) -> str:
        """`v6e:2x4`, or the kind of this machine's devices."""
        if self.absent and self.chip is not None:
            return f"{self.chip.name}:{self.topology}"
        return f"{HERE} ({self.devices[0].device_kind})"


def is_absent(device: str | None) -> bool:
    """Whether this names a TPU, which is described and need not be there."""
    chip = CHIPS.get(device or "")
    return chip is not None and chip.platform == "tpu"


def prepare(device: str | None) -> None:
    """Set the environment that absent devices need; to be called before JAX is imported. The user's own values stay."""
    if is_absent(device):
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    elif device == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def find_target(device: str | None, topology: str | None, count: int) -> TargetDevices:
    """The devices that the flags `--device` and `--topology` mean, at least `count` of them.

    Raises:
        ConfigError: an unknown device or topology, too few devices, or libtpu is not installed.
    """
    chip = CHIPS.get(device or "")
    if chip is not None and is_absent(device):
        return _absent(chip, topology, count)
    if topology is not None:
        raise ConfigError(f"--topology {topology}: requires a TPU as --device ({_tpus()})")
    import jax

    here = jax.local_devices()[0]
    found = chip_of(here.device_kind)
    if device in (None, here.platform) or (found is not None and found is chip):
        return TargetDevices(tuple(jax.local_devices()), absent=False, chip=found, topology="")
    if chip is not None or device in ("gpu", "cuda", "tpu"):
        raise ConfigError(
            f"--device {device}: this machine has none, and only TPUs can be planned without one ({_tpus()})"
        )
    raise ConfigError(f"--device {device}: unknown{nearest(str(device), CHIPS)} (known: cpu, {', '.join(CHIPS)})")


def _tpus() -> str:
    return ", ".join(chip.name for chip in CHIPS.values() if chip.platform == "tpu")


def _absent(chip: Chip, topology: str | None, count: int) -> TargetDevices:
    """Describe a TPU topology with libtpu."""
    shape = _smallest(chip, count) if topology is None else topology
    sizes = [int(size) if size.isdecimal() else 0 for size in shape.split("x")]
    if not 2 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ConfigError(
            f"--topology {shape}: expected the number of chips along each axis, such as "
            f"{chip.topology.partition(':')[2]}"
        )
    options: dict[str, Any] = dict(chip.topology_options)
    if math.prod(sizes) < _USUAL_HOST or math.prod(sizes) in _HOST_SIZES.get(chip.name, {}):
        # All of them on one host, maybe a part of its chips: else libtpu takes four chips to be a host.
        options["chips_per_host_bounds"] = (*sizes, 1)[:3]
    devices = _describe(f"{chip.name}:{shape}", options)
    if len(devices) < count:
        raise ConfigError(f"--topology {shape}: has {len(devices)} devices, but the engine needs {count}")
    return TargetDevices(tuple(devices), absent=True, chip=chip, topology=shape)


def _smallest(chip: Chip, count: int) -> str:
    """The smallest usual topology with `count` devices."""
    sizes = _HOST_SIZES.get(chip.name, {})
    return next((shape for chips, shape in sizes.items() if chips >= count), chip.topology.partition(":")[2])


def _describe(name: str, options: dict[str, Any]) -> list[Any]:
    try:
        import libtpu  # noqa: F401
    except ImportError:
        raise ConfigError("compiling for a TPU needs its compiler, libtpu: pip install 'jax[tpu]'") from None
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    logging.getLogger("jax").debug("describing %s", name)
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices)
    except JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"libtpu does not support topology {name}: {reason}") from error

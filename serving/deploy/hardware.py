"""The accelerators that one copy of a server can have on Google Cloud: machines, slices, labels of nodes.

Sources: "Plan TPUs in GKE" and "GPU machine types" (docs.cloud.google.com), for machine types, the topologies of their
slices and node labels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from jaxllm.errors import ConfigError, nearest
from jaxllm.pallas_kernels.chips import CHIPS

Platform = Literal["tpu", "gpu", "cpu"]

_L4_MEMORY = 24 * 10**9
"""Bytes of an L4, by NVIDIA's data sheet."""


@dataclass(frozen=True)
class Slice:
    """The machines of one copy of a server: some hosts of a machine type, with their accelerators.

    Attributes:
        device: Short name, a key of `DEVICES`.
        platform: JAX's name of the kind.
        machine: Machine type of Compute Engine; empty for CPUs, which may be any.
        hosts: Number of machines; each runs one pod.
        chips_per_host: Accelerators of each; 0 for CPUs.
        topology: TPU chips along each axis, as GKE writes it; empty for others.
        node_labels: Labels of the nodes.
    """

    device: str
    platform: Platform
    machine: str
    hosts: int
    chips_per_host: int
    topology: str
    node_labels: Mapping[str, str]

    @property
    def devices(self) -> int:
        """JAX devices of the whole slice: those of TPU7x are half a chip."""
        return self.hosts * self.chips_per_host * self.devices_per_chip

    @property
    def devices_per_chip(self) -> int:
        """One chip as JAX shows it."""
        return CHIPS[self.device].devices_per_chip if self.device in CHIPS else 1

    @property
    def memory_per_device(self) -> int:
        """Bytes of memory of one JAX device; 0 for CPUs."""
        if self.device in CHIPS:
            return CHIPS[self.device].hbm_bytes
        return _L4_MEMORY if self.device == "l4" else 0

    @property
    def resource(self) -> str | None:
        """The resources that a container requests of its node, by Kubernetes' name."""
        return {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu", "cpu": None}[self.platform]

    @property
    def name(self) -> str:
        """As one says it: `v6e 2x4`, `4 x l4`, `cpu`."""
        if self.platform == "gpu":
            return f"{self.chips_per_host} x {self.device}"
        return f"{self.device} {self.topology}".strip()


_TPUS = {
    # device: (value of the accelerator's label, machine type but for its last part)
    "v5e": ("tpu-v5-lite-podslice", "ct5lp-hightpu"),
    "v6e": ("tpu-v6e-slice", "ct6e-standard"),
    "v4": ("tpu-v4-podslice", "ct4p-hightpu"),
    "v5p": ("tpu-v5p-slice", "ct5p-hightpu"),
    "tpu7x": ("tpu7x", "tpu7x-standard"),
}
_FLAT = {"1x1": 1, "2x2": 4, "2x4": 8, "4x4": 4, "4x8": 4, "8x8": 4, "8x16": 4, "16x16": 4}
_CUBES = {"2x2x1": 4, "2x2x2": 4, "2x2x4": 4, "2x4x4": 4, "4x4x4": 4, "4x4x8": 4, "4x8x8": 4}
"""Chips of a host, by topology."""

_GPUS = {
    "l4": ("nvidia-l4", {1: "g2-standard-12", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"}),
    "h100": (
        "nvidia-h100-80gb",
        {1: "a3-highgpu-1g", 2: "a3-highgpu-2g", 4: "a3-highgpu-4g", 8: "a3-highgpu-8g"},
    ),
}


def _tpu(device: str, topology: str, chips_per_host: int) -> Slice:
    label, machine = _TPUS[device]
    chips = math.prod(map(int, topology.split("x")))
    return Slice(
        device,
        "tpu",
        f"{machine}-{chips_per_host}t",
        chips // chips_per_host,
        chips_per_host,
        topology,
        {"cloud.google.com/gke-tpu-accelerator": label, "cloud.google.com/gke-tpu-topology": topology},
    )


def _slices(device: str) -> tuple[Slice, ...]:
    if device in _TPUS:
        shapes = _FLAT if device in ("v5e", "v6e") else _CUBES
        return tuple(_tpu(device, topology, chips) for topology, chips in shapes.items())
    if device in _GPUS:
        label, machines = _GPUS[device]
        labels = {"cloud.google.com/gke-accelerator": label}
        return tuple(Slice(device, "gpu", machine, 1, count, "", labels) for count, machine in machines.items())
    return (Slice("cpu", "cpu", "", 1, 0, "", {}),)


DEVICES: Mapping[str, tuple[Slice, ...]] = MappingProxyType(
    {device: _slices(device) for device in ("cpu", *_TPUS, *_GPUS)}
)
"""The slices there are of each device, the smallest first."""


@dataclass(frozen=True)
class Choice:
    """A slice that holds a model, and how.

    Attributes:
        hardware: The slice.
        tensor_parallel_size, data_parallel_size: How one copy of a server uses its devices.
        max_model_len: Tokens of a request that it holds.
        shortened: Whether that is less than the model allows.
        weights: Bytes of the weights, of all devices of an engine together.
    """

    hardware: Slice
    tensor_parallel_size: int
    data_parallel_size: int
    max_model_len: int
    shortened: bool
    weights: int


def slices_of(device: str, topology: str | None = None) -> tuple[Slice, ...]:
    """The slices of a device that one may mean, the smallest first.

    Raises `ConfigError` for an unknown device, or a topology that it does not come in.
    """
    if device not in DEVICES:
        raise ConfigError(f"--device {device}: unknown{nearest(device, DEVICES)} (known: {', '.join(DEVICES)})")
    if topology is None:
        return DEVICES[device]
    found = tuple(each for each in DEVICES[device] if each.topology == topology)
    if not found:
        known = [each.topology for each in DEVICES[device] if each.topology]
        fix = f"choose one of {', '.join(known)}" if known else "only TPUs have a topology"
        raise ConfigError(f"--topology {topology}: GKE has no {device} of this topology; {fix}")
    return found

"""Facts about each accelerator: memory, bandwidth, peak rate, clock and matrix units, per JAX device.

Sources: the Cloud TPU pages "TPU v4", "v5e", "v5p", "v6e" and "TPU7x" (docs.cloud.google.com/tpu/docs/<name>) for
memory, bandwidth, peak and matrix units; NVIDIA's data sheets of H100, H200 and DGX B200. The clock of a TPU is public
for v4 (Jouppi et al., "TPU v4", ISCA 2023: 1,050 MHz) and v5e ("How to Scale Your Model", chapter 2: 1.5 GHz). For the
others it is the one at which the matrix units give the published peak:

    peak = clock * cores * mxus * mxu * mxu * 2 (a multiplication and an addition) * mxu_rows

`mxu_rows`, the rows that enter one matrix unit per cycle, is 1 up to v5p. For v6e and TPU7x it must be 2: at 1 their
clock would have to be 3.5 and 4.4 GHz, and libtpu's own estimate of a 4096 x 4096 x 4096 product (301,616 cycles on
v6e) is less than the 524,288 cycles that two 256 x 256 units need at one row per cycle.

`link_bandwidth` is the one-way figure of "How to Scale Your Model", chapter 2 (jax-ml.github.io/scaling-book/tpus). The
Cloud TPU pages give it per chip, both ways and all links together, and round up (v6e: 800 GB/s over 4 links).

PCI device IDs are those by which JAX finds TPUs (`jax/_src/hardware_utils.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

_GIB = 1 << 30


@dataclass(frozen=True)
class Chip:
    """One accelerator as JAX shows it; every figure is for one `jax.Device`: a chip, or one core of a chip of two.

    Attributes:
        name: Short name, the key of `CHIPS`.
        device_kind: `jax.Device.device_kind`.
        platform: JAX platform.
        hbm_bytes: Size of device memory in bytes, before what the system reserves.
        hbm_bandwidth: Peak bytes per second of device memory.
        bf16_flops: Peak bfloat16 operations per second of the matrix units (dense).
        clock_hz: Cycles per second of a core (TPU: one VLIW bundle per cycle).
        mxu: Edge of a matrix unit; 0 for GPUs.
        mxus: Matrix units per core; 0 for GPUs.
        cores: Cores that one JAX device drives: TensorCores of a TPU, multiprocessors of a GPU.
        topology: Smallest topology name for `jax.experimental.topologies.get_topology_desc`; empty for GPUs.
        mxu_rows: Rows of bfloat16 that enter one matrix unit per cycle; 0 for GPUs.
        link_bandwidth: Bytes per second, one way, of one link to a neighbouring chip (ICI); 0 for GPUs.
        topology_options: Further keywords for `get_topology_desc`, without which it describes another device.
        devices_per_chip: What JAX shows of one chip, which has one file in `/dev` and one number for libtpu.
        pci_device: Device ID on the PCI bus; empty for GPUs.
    """

    name: str
    device_kind: str
    platform: Literal["tpu", "gpu"]
    hbm_bytes: int
    hbm_bandwidth: float
    bf16_flops: float
    clock_hz: float
    mxu: int
    mxus: int
    cores: int
    topology: str
    mxu_rows: int = 0
    link_bandwidth: float = 0
    topology_options: Mapping[str, str] = field(default_factory=dict)
    devices_per_chip: int = 1
    pci_device: str = ""


_ALL = (
    Chip(
        name="v4",
        device_kind="TPU v4",
        platform="tpu",
        hbm_bytes=32 * _GIB,  # 32 GiB per chip
        hbm_bandwidth=1.2e12,  # 1200 GB/s per chip
        bf16_flops=275e12,
        clock_hz=1.05e9,
        mxu=128,
        mxus=4,
        cores=2,  # megacore: one device drives both TensorCores
        topology="v4:2x2x1",
        pci_device="0x005e",
        mxu_rows=1,
        link_bandwidth=45e9,
        topology_options={"chip_config_name": "megacore"},  # else the description has one device per core
    ),
    Chip(
        name="v5e",
        device_kind="TPU v5 lite",
        platform="tpu",
        hbm_bytes=16 * _GIB,
        hbm_bandwidth=819e9,
        bf16_flops=197e12,
        clock_hz=1.5e9,
        mxu=128,
        mxus=4,
        cores=1,
        topology="v5e:2x2",
        pci_device="0x0063",
        mxu_rows=1,
        link_bandwidth=45e9,
    ),
    Chip(
        name="v5p",
        device_kind="TPU v5",
        platform="tpu",
        hbm_bytes=95 * _GIB,
        hbm_bandwidth=2.765e12,
        bf16_flops=459e12,
        clock_hz=1.75e9,  # from the peak
        mxu=128,
        mxus=4,
        cores=2,  # megacore
        topology="v5p:2x2x1",
        pci_device="0x0062",
        mxu_rows=1,
        link_bandwidth=90e9,
    ),
    Chip(
        name="v6e",
        device_kind="TPU v6 lite",
        platform="tpu",
        hbm_bytes=32 * _GIB,
        hbm_bandwidth=1.638e12,
        bf16_flops=918e12,
        clock_hz=1.75e9,  # from the peak
        mxu=256,
        mxus=2,
        cores=1,
        topology="v6e:2x2",
        pci_device="0x006f",
        mxu_rows=2,
        link_bandwidth=90e9,
    ),
    Chip(
        name="tpu7x",
        device_kind="TPU7x",
        platform="tpu",
        devices_per_chip=2,  # one for each TensorCore
        # Per chip: 192 GiB, 7380 GB/s, 2307 TFLOP/s.
        hbm_bytes=96 * _GIB,
        hbm_bandwidth=3.69e12,
        bf16_flops=1153.5e12,
        clock_hz=2.2e9,  # from the peak
        mxu=256,
        mxus=2,
        cores=1,
        topology="tpu7x:2x2x1",
        pci_device="0x0076",
        mxu_rows=2,
        link_bandwidth=90e9,
    ),
    Chip(
        name="h100",
        device_kind="NVIDIA H100 80GB HBM3",
        platform="gpu",
        hbm_bytes=80 * 10**9,  # SXM: 80 GB, 3.35 TB/s, 1,979 TFLOP/s with sparsity
        hbm_bandwidth=3.35e12,
        bf16_flops=989.4e12,
        clock_hz=1.83e9,  # at which 132 multiprocessors give the peak
        mxu=0,
        mxus=0,
        cores=132,
        topology="",
    ),
    Chip(
        name="h200",
        device_kind="NVIDIA H200",
        platform="gpu",
        hbm_bytes=141 * 10**9,  # SXM: 141 GB, 4.8 TB/s; the same processor as H100
        hbm_bandwidth=4.8e12,
        bf16_flops=989.4e12,
        clock_hz=1.83e9,
        mxu=0,
        mxus=0,
        cores=132,
        topology="",
    ),
    Chip(
        name="b200",
        device_kind="NVIDIA B200",
        platform="gpu",
        hbm_bytes=180 * 10**9,  # DGX B200, eight of them: 1,440 GB, 64 TB/s, 36 PFLOP/s of bfloat16 with sparsity
        hbm_bandwidth=8e12,
        bf16_flops=2.25e15,
        clock_hz=1.86e9,  # at which 148 multiprocessors give the peak
        mxu=0,
        mxus=0,
        cores=148,
        topology="",
    ),
)

CHIPS: Mapping[str, Chip] = MappingProxyType({chip.name: chip for chip in _ALL})
"""Chips by short name."""


def chip_of(device_kind: str) -> Chip | None:
    """The chip that JAX calls `device_kind`, or None when its figures are not known here."""
    return next((chip for chip in _ALL if chip.device_kind == device_kind), None)

"""Which devices of this machine each of several engines sees.

Chips are given to processes by their environment, which their drivers read: `TPU_VISIBLE_CHIPS` with the bounds of a
slice of its own (Google Cloud's documentation of TPU VMs, "Run multiple workloads"), or `CUDA_VISIBLE_DEVICES`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jaxllm.config import EngineConfig, ParallelOptions
from jaxllm.config.engine_info import EngineInfo
from jaxllm.errors import ConfigError
from jaxllm.pallas_kernels.chips import CHIPS

_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""How so many chips of one machine lie, as libtpu wants to know it."""
_GOOGLE = "0x1ae0"
"""Vendor on the PCI bus."""
_TPU_PORT = 8476
"""Port of the mesh controller of a process whose first chip is 0; with chip 1 it is the next one, and so on."""


def visible_devices(
    number: int,
    parallel: ParallelOptions,
    environment: Mapping[str, str] | None = None,
    devices: Path = Path("/dev"),
    bus: Path = Path("/sys/bus/pci/devices"),
) -> dict[str, str]:
    """Variables for the process of engine `number`, counted on this host; none where engines share the processors.

    It may also be one that is added later. Raises `ConfigError` when there are not enough devices for all.
    """
    if (parallel.engines_here == 1 and number == 0) or parallel.device == "cpu":
        return {}
    found = os.environ if environment is None else environment
    if found.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return {}
    tpus = _numbered(found.get("TPU_VISIBLE_CHIPS"), [*devices.glob("accel[0-9]*"), *devices.glob("vfio/[0-9]*")])
    if tpus and parallel.device in ("auto", "tpu"):
        return tpu_variables(_share(tpus, number, parallel, "TPU chips", _devices_per_chip(bus)))
    gpus = _numbered(found.get("CUDA_VISIBLE_DEVICES"), [*devices.glob("nvidia[0-9]*")])
    if gpus:
        return {"CUDA_VISIBLE_DEVICES": ",".join(_share(gpus, number, parallel, "GPUs"))}
    return {}


def tpu_variables(chips: Sequence[str]) -> dict[str, str]:
    """Variables for a process that shall see these chips of its machine alone; none for none. Raises `ConfigError`."""
    if not chips:
        return {}
    # No chip is the first of two processes.
    port = _TPU_PORT + int(chips[0])
    return {
        "TPU_VISIBLE_CHIPS": ",".join(chips),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _bounds(len(chips)),
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_MESH_CONTROLLER_ADDRESS": f"localhost:{port}",
        "TPU_MESH_CONTROLLER_PORT": str(port),
    }


def _numbered(visible: str | None, files: list[Path]) -> list[str]:
    """Names of the devices: those that are said to be visible, or else the numbers of the driver's files."""
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(number) for number in range(len(files))]


def _devices_per_chip(bus: Path) -> int:
    """JAX devices of each TPU chip of this machine."""
    known = {chip.pci_device: chip.devices_per_chip for chip in CHIPS.values() if chip.platform == "tpu"}
    for vendor in bus.glob("*/vendor"):
        if vendor.read_text().strip() == _GOOGLE:
            found = known.get(vendor.with_name("device").read_text().strip())
            if found is not None:
                return found
    return 1


def _share(names: list[str], number: int, parallel: ParallelOptions, kind: str, devices: int = 1) -> list[str]:
    """The names for one engine: of as many `devices` as its matrices are split over, or else an equal part.

    No two processes can have devices of one chip.
    """
    count = parallel.engines_here
    size, stages = parallel.tensor_parallel_size if parallel.mesh is None else "auto", parallel.pipeline_parallel_size
    each = len(names) // max(count, 1) if size == "auto" else -(-size * stages // devices)
    if each == 0 or each * count > len(names):
        in_stages = f" in {stages} stages" if stages > 1 else ""
        wanted = "1 each" if size == "auto" else f"tensor_parallel_size={size}{in_stages} each"
        of = f", with {devices} devices each," if devices > 1 else ""
        raise ConfigError(f"data_parallel_size={count}: {wanted} exceed the {len(names)} {kind}{of} of this machine")
    if count == 1 or (number + 1) * each > len(names):
        # An engine that was started alone has taken all.
        each = len(names) if count == 1 else each
        raise ConfigError(
            f"no {kind} are left for engine {number}: {count} with {each} each were started on {len(names)}"
        )
    return names[number * each : (number + 1) * each]


def _bounds(chips: int) -> str:
    if chips not in _TPU_BOUNDS:
        sizes = ", ".join(map(str, _TPU_BOUNDS))
        raise ConfigError(
            f"data_parallel_size: {chips} TPU chips for each engine are not supported; supported: {sizes}"
        )
    return _TPU_BOUNDS[chips]


def as_first(config: EngineConfig, info: EngineInfo) -> EngineConfig:
    """What further engines are to be like the first one in: where they share memory, in the size of the KV cache."""
    is_chosen = config.cache.kv_cache_memory_bytes is not None or info.pooling is not None
    if info.device_kind != "cpu" or is_chosen:
        return config
    return replace(config, cache=replace(config.cache, num_gpu_blocks_override=info.num_pages))


def of_rank(config: EngineConfig, number: int) -> EngineConfig:
    """What the process of engine `number` of this server is to load: it knows its rank where it needs one."""
    if config.cache.kv_events is None and config.cache.kv_transfer is None:
        return config
    rank = config.parallel.first_rank + number
    return replace(config, parallel=replace(config.parallel, data_parallel_rank=rank))

"""GPUs for which JAX compiles without one."""

from dataclasses import dataclass
from typing import Any

from jax.experimental import topologies


@dataclass(frozen=True)
class Gpu:
    """What XLA's compiler is told of a GPU; bytes, bytes per second, hertz.

    Sources: NVIDIA's data sheets of A100 (80 GB, SXM), L4, H100 and H200 (SXM), and the table of compute capabilities
    in the CUDA C++ Programming Guide.
    """

    kind: str
    capability: tuple[int, int]
    cores: int
    fpus_per_core: int
    threads_per_core: int
    shared_memory: int
    cache: int
    memory: int
    bandwidth: int
    clock_ghz: float

    def devices(self) -> list[Any]:
        """One device of this kind, for which JAX compiles. Needs JAX's plugin for CUDA, and no GPU."""
        found = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=self.description(), topology="1x1x1"
        )
        return list(found.devices)

    def description(self) -> str:
        """As text of XLA's `GpuTargetConfigProto`. Graphs with conditionals need a driver of CUDA 12.3."""
        major, minor = self.capability
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {self.shared_memory + 1024} shared_memory_per_block_optin: {self.shared_memory}
  threads_per_core_limit: {self.threads_per_core} core_count: {self.cores} fpus_per_core: {self.fpus_per_core}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {self.bandwidth} l2_cache_size: {self.cache} clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {self.memory} registers_per_core_limit: 65536 registers_per_block_limit: 65536
  driver_version: "13.0.0" runtime_version: "13.0.0" cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{self.kind}"
"""


GPUS = {
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 227 << 10, 50 << 20, 80 << 30, 3350 * 10**9, 1.98),
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 128, 2048, 227 << 10, 50 << 20, 141 * 10**9, 4800 * 10**9, 1.98),
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 163 << 10, 40 << 20, 80 << 30, 2039 * 10**9, 1.41),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, 128, 1536, 99 << 10, 48 << 20, 24 << 30, 300 * 10**9, 2.04),
}

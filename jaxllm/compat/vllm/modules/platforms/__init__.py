"""The devices that the engine runs on."""

import os
import sys
from importlib.util import find_spec

from jaxllm.executor.device_holders import device_files

__all__ = ["current_platform"]

_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_NAMES = {"cuda": "gpu", "rocm": "gpu"}
"""JAX's platform names that differ from `device_type`."""


class _Platform:
    """The accelerator of this machine.

    Its type is found without JAX, unless JAX runs here already: a process that has begun JAX holds the
    device, and one that is forked from it hangs. Names and numbers of devices begin it.
    """

    @property
    def device_type(self) -> str:
        """`tpu`, `gpu` or `cpu`."""
        platforms = os.environ.get("JAX_PLATFORMS", "")
        if "jax" in sys.modules:
            import jax
            from jax._src.xla_bridge import backends_are_initialized

            if backends_are_initialized():
                return jax.default_backend()
            platforms = jax.config.values["jax_platforms"] or ""
        asked = platforms.partition(",")[0].strip()
        return _NAMES.get(asked, asked) or _visible_platform()

    def get_device_name(self, device_id: int = 0) -> str:
        """The kind of a device, as its maker calls it."""
        import jax

        return jax.devices()[device_id].device_kind

    def device_count(self) -> int:
        """Devices that this process sees."""
        import jax

        return jax.device_count()

    def is_tpu(self) -> bool:
        """Whether it is a TPU."""
        return self.device_type == "tpu"

    def is_cpu(self) -> bool:
        """Whether there is no accelerator."""
        return self.device_type == "cpu"

    def is_cuda(self) -> bool:
        """Whether it is a GPU of NVIDIA's."""
        return self.device_type == "gpu" and not self.is_rocm()

    def is_cuda_alike(self) -> bool:
        """Whether it is a GPU."""
        return self.device_type == "gpu"

    def is_rocm(self) -> bool:
        """Whether it is a GPU of AMD's."""
        return os.environ.get("JAX_PLATFORMS", "").startswith("rocm")

    def is_xpu(self) -> bool:
        """Whether it is a GPU of Intel's: those are not supported."""
        return False


def _visible_platform() -> str:
    """The type of the device files that there are, where JAX can use such devices."""
    files = device_files()
    is_gpu = any("nvidia" in file or file.endswith("dxg") for file in files)
    if is_gpu and any(map(find_spec, _GPU_PLUGINS)):
        return "gpu"
    return "tpu" if files and not is_gpu and find_spec("libtpu") else "cpu"


current_platform = _Platform()

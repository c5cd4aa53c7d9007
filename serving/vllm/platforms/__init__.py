"""What the engine runs on."""

__all__ = ["current_platform"]


class _Platform:
    """The accelerator that JAX finds; asking takes as long as JAX needs to find it."""

    @property
    def device_type(self) -> str:
        """`tpu`, `gpu` or `cpu`."""
        import jax

        return jax.default_backend()

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
        return self.device_type == "gpu" and "NVIDIA" in self.get_device_name()

    def is_cuda_alike(self) -> bool:
        """Whether it is a GPU."""
        return self.device_type == "gpu"

    def is_rocm(self) -> bool:
        """Whether it is a GPU of AMD's."""
        return self.device_type == "gpu" and not self.is_cuda()

    def is_xpu(self) -> bool:
        """Whether it is a GPU of Intel's: those are not supported."""
        return False


current_platform = _Platform()

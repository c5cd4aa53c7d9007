"""Which implementation chooses tokens."""

from typing import Any

from jaxllm.errors import ConfigError


def choose_sampling(asked: str, device: Any, vocab_size: int) -> str:
    """The implementation of `choose_tokens` for a device: the one asked for, or the fastest for 'auto'.

    Raises `ConfigError` where the one asked for is of another platform or cannot.
    """
    if asked in ("reference", "xla") or (asked == "auto" and device.platform != "tpu"):
        return "xla" if asked == "auto" else asked
    if device.platform != "tpu":
        raise ConfigError(f"sampling_backend='tpu' needs a TPU; this is a {device.platform.upper()}")
    # Here, so that other machines do not load its compiler.
    from jaxllm.pallas_kernels.sampling.tpu.sampling import fits

    if fits(device, vocab_size):
        return "tpu"
    if asked == "auto":
        return "xla"
    raise ConfigError(
        f"sampling_backend='tpu': this {device.device_kind} has too little vector memory for a vocabulary of "
        f"{vocab_size}; leave it out, or choose 'xla'"
    )

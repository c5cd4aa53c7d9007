"""JAX's backend: which platform it is, and what share of a GPU's memory it takes. Both are settled before it starts."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax._src.xla_bridge import backends_are_initialized

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.device_holders import device_files, holders
from jaxllm.executor.hosts import check_one_host

logger = logging.getLogger(__name__)

_PLATFORMS = {"tpu": "tpu,cpu", "gpu": "cuda,cpu", "cpu": "cpu"}
"""What JAX is asked for. The CPU comes second, for what runs on the host: the first one is used, or JAX fails."""

MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
MEMORY_FRACTIONS = (MEMORY_FRACTION, "XLA_CLIENT_MEM_FRACTION")
"""Share of each GPU that JAX takes, 0.75 by default, also where it does not preallocate. JAX wants only one of them."""

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"

_PACKAGES = {"tpu": "pip install 'jax[tpu]'", "gpu": "pip install 'jax[cuda13]' (with a driver below 580: jax[cuda12])"}


def start_backend(config: EngineConfig) -> list[jax.Device]:
    """Start JAX on the platform asked for, unless it has started; returns this process's devices.

    Raises:
        ConfigError: JAX does not start, would wait for other hosts, or has started on another platform.
    """
    asked, was_started = config.parallel.device, backends_are_initialized()
    before = jax.config.values["jax_platforms"]
    if asked != "auto" and not was_started:
        jax.config.update("jax_platforms", _PLATFORMS[asked])
    if not was_started:
        check_one_host()
    try:
        with _memory_share(config.cache.gpu_memory_utilization):
            devices = jax.local_devices()
    except RuntimeError as error:
        # Whoever catches this may try another platform.
        jax.config.update("jax_platforms", before)
        raise ConfigError(
            f"device={asked!r}: JAX failed to start: {_first_line(error)}{_platform_advice(asked)}"
        ) from error
    platform = devices[0].platform
    if asked not in ("auto", platform):
        jax.config.update("jax_platforms", before)
        advice = "; create the engine before using JAX in this process" if was_started else _platform_advice(asked)
        raise ConfigError(f"device={asked!r}: JAX has already started on {platform.upper()}{advice}")
    if platform == "cpu" and asked == "auto" and not before:
        _warn_of_unused_accelerator()
    if platform == "gpu":
        _explain_memory(config.cache.gpu_memory_utilization, devices[0], was_started=was_started)
    return devices


@contextmanager
def _memory_share(share: float) -> Iterator[None]:
    """Within it JAX starts with that share of each GPU, unless the environment says otherwise.

    Not longer: engines in processes that this one starts have their own options.
    """
    if _chosen_share() is not None:
        yield
        return
    os.environ[MEMORY_FRACTION] = str(share)
    try:
        yield
    finally:
        del os.environ[MEMORY_FRACTION]


def growth_hint() -> str:
    """Advice for errors where JAX's pool on a GPU grows: a large array may fit into none of its pieces."""
    grows = os.environ.get(PREALLOCATE, "").lower() in ("false", "0")
    return f"; with {PREALLOCATE}=false, JAX allocates memory piece by piece: unset it" if grows else ""


def _chosen_share() -> str | None:
    return next((value for name in MEMORY_FRACTIONS if (value := os.environ.get(name))), None)


def _platform_advice(asked: str) -> str:
    """Advice for a platform that does not start: who holds the device, or what to install."""
    files = device_files()
    held = "; ".join(f"process {each.pid} ({each.user}: {each.command}) has it open" for each in holders(files))
    if held:
        return f"; {held}: end it first"
    if asked in _PACKAGES and not files:
        return f"; this machine has no visible {asked.upper()}"
    return f"; unless it is installed: {_PACKAGES[asked]}" if asked in _PACKAGES else ""


def _warn_of_unused_accelerator() -> None:
    files = device_files()
    if not files:
        return
    has_gpu = any("nvidia" in file or file.endswith("dxg") for file in files)
    platform = "gpu" if has_gpu else "tpu"
    logger.warning(
        "this machine has an accelerator (%s), but JAX runs on the CPU%s; --device %s makes JAX report why it does "
        "not start, and --device cpu silences this warning",
        files[0],
        _platform_advice(platform),
        platform,
    )


def _explain_memory(wanted: float, device: jax.Device, *, was_started: bool) -> None:
    """Say where the share of a GPU's memory comes from, if not from `gpu_memory_utilization`."""
    chosen = _chosen_share()
    if chosen is not None:
        logger.warning(
            "JAX allocates %s of GPU memory, as set in the environment; gpu_memory_utilization=%s has no effect",
            chosen,
            wanted,
        )
    elif was_started:
        limit = (device.memory_stats() or {}).get("bytes_limit", 0)
        logger.warning(
            "JAX has already started with %.1f GiB of GPU memory, which the engine uses; gpu_memory_utilization=%s "
            "has no effect",
            limit / 2**30,
            wanted,
        )


def _first_line(error: Exception) -> str:
    """JAX's message without its own advice."""
    return str(error).strip().splitlines()[0].partition(" (set JAX_PLATFORMS")[0]

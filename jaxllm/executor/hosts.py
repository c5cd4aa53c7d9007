"""Is this one host of several that share a TPU slice? JAX would wait for the others, without a message."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

import jax

from jaxllm.errors import ConfigError

_ADVICE = (
    "To run one engine on all hosts, start jaxllm on each with --distributed-executor-backend multihost. To use only "
    "this host's chips, set TPU_WORKER_HOSTNAMES=localhost, TPU_PROCESS_BOUNDS=1,1,1 and "
    "TPU_CHIPS_PER_PROCESS_BOUNDS to their shape (2,2,1 for four chips), or use a single-host slice"
)


def check_one_host(environment: Mapping[str, str] | None = None, devices: Path = Path("/dev")) -> None:
    """To be called before JAX looks for devices: it raises where JAX would wait for other hosts for ever.

    Reads what machines of a slice have in their environment. Says nothing once `jax.distributed` is initialised, or
    where JAX is told to use no TPU.

    Raises:
        ConfigError: this is one host of several.
    """
    found = os.environ if environment is None else environment
    platforms = str(jax.config.values["jax_platforms"] or "")
    if jax.distributed.is_initialized() or (platforms and "tpu" not in platforms):
        return
    bounds = found.get("TPU_PROCESS_BOUNDS") or found.get("TPU_HOST_BOUNDS")
    if bounds is not None and _product(bounds) == 1:
        return
    chips = _chips(devices)
    if not chips:
        return
    hosts = [name for name in found.get("TPU_WORKER_HOSTNAMES", "").split(",") if name.strip()]
    if len(hosts) > 1:
        raise ConfigError(f"this is one of the {len(hosts)} hosts in TPU_WORKER_HOSTNAMES. {_ADVICE}")
    topology = found.get("TPU_TOPOLOGY", "")
    # Where hostnames name one host, its chips are all that JAX waits for, whatever the slice has.
    if not hosts and _product(topology) > chips:
        raise ConfigError(
            f"TPU_TOPOLOGY={topology} has {_product(topology)} chips, but this host has {chips}. {_ADVICE}"
        )


def _chips(devices: Path) -> int:
    """TPU chips of this machine, by the files of their drivers."""
    return len([*devices.glob("accel[0-9]*"), *devices.glob("vfio/[0-9]*")])


def _product(sizes: str) -> int:
    """Product of sizes written as '2,2,1' or '4x4'; 0 for anything else."""
    parts = re.split("[x,]", sizes.strip())
    return math.prod(map(int, parts)) if all(part.strip().isdecimal() for part in parts) else 0

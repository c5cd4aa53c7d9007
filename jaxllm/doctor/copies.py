"""Stage `copies`: the ways of KV pages to host memory, back, and to files, with checksums.

An engine with `--kv-offloading-size` takes the first way each. The others show what a device would have to gain by
memory that it can reach itself.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxllm.doctor.result import Context, Outcome
from jaxllm.doctor.timing import best_seconds
from jaxllm.kv.tiers.disk.page_file import PageKey, read_page, write_page
from jaxllm.kv.tiers.host_pool import crc

_BYTES = {"cpu": 2**24}
_OTHER_BYTES = 2**27
PINNED = "pinned_host"
"""JAX's name of host memory that devices reach themselves."""
_COPIES = 6
"""How often a copy may be made and measured."""


class WrongBytesError(Exception):
    """What came is not what was sent."""


def run(context: Context) -> Outcome:
    """Measure the default device, and the file system of temporary files."""
    device = jax.local_devices()[0]
    size = _BYTES.get(device.platform, _OTHER_BYTES)
    data = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
    data[1::2] &= 0xBF  # numbers of bfloat16 that are numbers
    ways: dict[str, Callable[[], float | None]] = {
        "to_host": lambda: _to_host(data, device),
        "to_host_pinned": lambda: _pinned(data, device, by_program=False),
        "to_host_pinned_by_program": lambda: _pinned(data, device, by_program=True),
        "to_device": lambda: _to_device(data, device),
        "to_file": lambda: _to_file(data, context.scratch / "copies"),
        "from_file": lambda: _from_file(data, context.scratch / "copies"),
    }
    figures: dict[str, Any] = {"bytes": size}
    wrong: list[str] = []
    for name, measured in ways.items():
        context.say(f"copying {name}")
        try:
            seconds = measured()
            figures[f"{name}_bytes_per_s"] = None if seconds is None else size / seconds
        except WrongBytesError:
            wrong.append(name)
    if wrong:
        summary = f"copies come with other bytes: {', '.join(wrong)}"
        return Outcome(summary, figures, "failed", "serve without --kv-offloading-size, and send us the report")
    shown = {name: figures[f"{name}_bytes_per_s"] for name in ways}
    speeds = (f"{name.replace('_', ' ')} {each / 1e9:.1f}" for name, each in shown.items() if each is not None)
    return Outcome(f"{', '.join(speeds)} GB/s, checksums included", figures)


def _check(data: np.ndarray, found: np.ndarray) -> None:
    """Raise `WrongBytesError` unless both have the same bytes."""
    if crc(np.ascontiguousarray(found).reshape(-1).view(np.uint8)) != crc(data):
        raise WrongBytesError


def _arrays(data: np.ndarray, device: jax.Device) -> list[jax.Array]:
    """Equal arrays: JAX keeps the host's copy of each, so that it can be measured once."""
    half = jax.device_put(data, device, may_alias=False).view(jnp.bfloat16)
    return [jax.block_until_ready(half.copy()) for _ in range(_COPIES)]


def _to_host(data: np.ndarray, device: jax.Device) -> float:
    arrays = iter(_arrays(data, device))

    def copy() -> None:
        array = next(arrays)
        array.copy_to_host_async()
        _check(data, np.asarray(array))

    return best_seconds(copy)


def _pinned(data: np.ndarray, device: jax.Device, *, by_program: bool) -> float | None:
    """Seconds by way of memory that the device reaches itself; None where there is none, or it cannot be used so."""
    if PINNED not in {each.kind for each in device.addressable_memories()}:
        return None
    place = SingleDeviceSharding(device, memory_kind=PINNED)
    arrays = iter(_arrays(data, device))
    program = jax.jit(lambda array: array, out_shardings=place)

    def copy() -> None:
        array = next(arrays)
        _check(data, np.asarray(program(array) if by_program else jax.device_put(array, place)))

    with suppress(jax.errors.JaxRuntimeError, NotImplementedError, ValueError):
        return best_seconds(copy)
    return None


def _to_device(data: np.ndarray, device: jax.Device) -> float:
    def copy() -> jax.Array:
        crc(data)
        return jax.device_put(data, device, may_alias=False)

    _check(data, np.array(copy()))
    return best_seconds(copy)


def _key() -> PageKey:
    return PageKey(bytes(32), bytes(32), 0)


def _to_file(data: np.ndarray, path: Path) -> float:
    """With the time until the disk has it."""

    def copy() -> None:
        write_page(path, path.with_suffix(".new"), _key(), data, crc(data))
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)

    return best_seconds(copy)


def _from_file(data: np.ndarray, path: Path) -> float:
    """Without what the system has kept of it in memory, where it can be asked to forget that."""
    found = np.zeros_like(data)

    def forget() -> None:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)

    def copy() -> None:
        if hasattr(os, "posix_fadvise"):
            forget()
        if read_page(path, _key(), found) != crc(found):
            raise WrongBytesError

    seconds = best_seconds(copy)
    _check(data, found)
    path.unlink()
    return seconds

"""Stage `devices`: what JAX finds, where it lies, how much memory it has, and whether each device can add."""

import os
from typing import Any

from jaxllm.doctor.result import Context, Outcome
from jaxllm.executor.device_holders import device_files
from jaxllm.pallas_kernels.chips import chip_of


def run(context: Context) -> Outcome:
    """Start JAX and use every device once."""
    context.say("starting JAX")
    import jax
    import jax.numpy as jnp
    import numpy as np

    devices = jax.local_devices()
    chip = chip_of(devices[0].device_kind)
    wrong = []
    for device in devices:
        context.say(f"adding numbers on {device}")
        found = np.asarray(jax.device_put(np.arange(1024, dtype=np.int32), device) + jnp.int32(1))
        if not np.array_equal(found, np.arange(1, 1025)):
            wrong.append(str(device))
    figures = {
        "backend": jax.default_backend(),
        "platform_version": devices[0].client.platform_version,
        "processes": jax.process_count(),
        "all_devices": jax.device_count(),
        "chip": None if chip is None else chip.name,
        "devices": [_describe(device) for device in devices],
    }
    memory = figures["devices"][0]["memory_bytes"]
    parts = [f"{len(devices)} x {devices[0].device_kind}", f"backend {figures['backend']}"]
    parts += [f"{memory / 2**30:.1f} GiB each"] if memory else []
    parts += [f"{jax.process_count()} processes"] if jax.process_count() > 1 else []
    summary = ", ".join(parts)
    if wrong:
        return Outcome(f"wrong sums on {', '.join(wrong)}", figures, "failed", "the hardware or its driver is broken")
    return Outcome(summary, figures, *_verdict(figures["backend"]))


def _verdict(backend: str) -> tuple[Any, str | None]:
    """Whether JAX uses the accelerator that is there."""
    files, chosen = device_files(), os.environ.get("JAX_PLATFORMS", "")
    if backend != "cpu" or not files:
        return "ok", None
    if chosen.partition(",")[0] == "cpu":
        return "ok", f"this machine has an accelerator ({files[0]}), but JAX_PLATFORMS={chosen} disables it"
    return "failed", (
        f"this machine has an accelerator ({files[0]}), but JAX runs on the CPU: pip install 'jax[tpu]' or "
        "'jax[cuda13]' unless it is installed; JAX_PLATFORMS=tpu or cuda makes JAX report why it does not start"
    )


def _describe(device: Any) -> dict[str, Any]:
    stats = device.memory_stats() or {}
    place = {
        name: getattr(device, name)
        for name in ("coords", "core_on_chip", "slice_index", "compute_capability")
        if getattr(device, name, None) is not None
    }
    return {
        "id": device.id,
        "kind": device.device_kind,
        "process": device.process_index,
        "memory_bytes": stats.get("bytes_limit"),
        "memory_used_bytes": stats.get("bytes_in_use"),
        **place,
    }

"""Stage `all_reduce`: whether all devices can add up what each has, and how fast."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.doctor.result import Context, Outcome
from jaxllm.doctor.timing import best_seconds

SIZES = (2**14, 2**20, 2**26)
"""Bytes on each device: of a decode, of a chunk of a prompt, and one that shows the bandwidth."""


def run(context: Context) -> Outcome:
    """Sum bfloat16 arrays over all devices of this process."""
    devices = jax.local_devices()
    count = len(devices)
    if count == 1:
        return Outcome("only one device", status="skipped")
    mesh = jax.make_mesh((count,), ("x",), devices=devices)
    split = PartitionSpec("x")
    add = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=split, out_specs=split))
    figures: list[dict[str, Any]] = []
    for size in SIZES[:2] if devices[0].platform == "cpu" else SIZES:
        context.say(f"all-reduce of {size:,} bytes on {count} devices")
        rows = np.arange(1, count + 1, dtype=np.float32)[:, None]
        array = jax.device_put(
            np.broadcast_to(rows, (count, size // 2)).astype(jnp.bfloat16), NamedSharding(mesh, split)
        )
        if not bool((add(array) == jnp.bfloat16(count * (count + 1) // 2)).all()):
            return Outcome(
                f"all-reduces of {size:,} bytes are wrong",
                {"sums": figures},
                "failed",
                "serve with --tensor-parallel-size 1",
            )
        seconds = best_seconds(partial(add, array), runs=10)
        # In a ring, each device sends and receives this much.
        moved = 2 * (count - 1) / count * size
        figures.append({"bytes": size, "seconds": seconds, "bytes_per_s": moved / seconds})
    small, large = figures[0], figures[-1]
    summary = (
        f"{count} devices: {small['seconds'] * 1e6:,.0f} us for {small['bytes'] // 1024} KiB, "
        f"{large['bytes_per_s'] / 1e9:,.1f} GB/s for {large['bytes'] // 2**20} MiB"
    )
    return Outcome(summary, {"devices": count, "sums": figures})

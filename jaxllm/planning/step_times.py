"""The expected times of an engine's steps, to compare with what they do."""

from collections.abc import Iterable
from typing import Any

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import chip_of
from jaxllm.planning.roofline import estimate


def planned_step_seconds(resolved: ResolvedConfig, parameters: Any, buckets: Iterable[Bucket]) -> dict[int, float]:
    """Seconds that `jaxllm plan` estimates for a full step of each bucket, by its tokens.

    `parameters` are arrays or their shapes. Empty where the chip's figures are not known.
    """
    chip = chip_of(resolved.device_kind)
    if chip is None:
        return {}
    weights, page = bytes_on_device(parameters), resolved.cache.page_bytes // resolved.num_devices
    return {bucket.tokens: estimate(resolved, chip, weights, page, bucket).seconds for bucket in buckets}

"""What a step computes, reads and writes on each device, by the estimate of `jaxllm.planning.roofline`.

For `--enable-mfu-metrics`: a step costs some array operations, whatever its requests are.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxllm.executor.memory.capacity import bytes_on_device, slot_bytes
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import chip_of
from jaxllm.planning.looks import looks_of
from jaxllm.planning.roofline import matrix_work

Int32Array = npt.NDArray[np.int32]
Amounts = tuple[float, float, float]
"""Operations, bytes read and bytes written."""


class StepWork:
    """Counts the work of an engine's steps. Of several stages, it is the mean of their devices."""

    def __init__(self, resolved: ResolvedConfig, parameters: Iterable[Any]) -> None:
        """`parameters` are those of each stage, arrays or their shapes."""
        parts = zip(resolved.stage_configs, parameters, strict=True)
        self._parts = [_Part(part, bytes_on_device(own)) for part, own in parts]
        self._data_shards = resolved.data_shards
        chip = chip_of(resolved.device_kind)
        self.peaks: tuple[float, float] = (0.0, 0.0) if chip is None else (chip.bf16_flops, chip.hbm_bandwidth)
        """Operations and bytes per second that a device can do at most; 0 where that is not known."""

    def of(self, starts: Int32Array, num_new: Int32Array, num_logits: int) -> Amounts:
        """The work of a device in a step.

        A row computes positions `starts` to `starts + num_new` (int32 [n]) of its request; logits are made of
        `num_logits` tokens.
        """
        first, new = starts.astype(np.int64), num_new.astype(np.int64)
        found = [part.of(first, new, num_logits, self._data_shards) for part in self._parts]
        flops, read, written = (sum(amounts) / len(found) for amounts in zip(*found, strict=True))
        return flops, read, written


class _Part:
    """The layers of a stage, or all."""

    def __init__(self, resolved: ResolvedConfig, weight_bytes: int) -> None:
        self._resolved, self._weight_bytes = resolved, weight_bytes
        self._per_token = matrix_work(resolved, weight_bytes, 1, 0).flops
        self._per_logits = matrix_work(resolved, weight_bytes, 0, 1).flops
        self._state_bytes = slot_bytes(resolved)
        self._weights_read: dict[int, float] = {}
        self._windows: dict[int, list[float]] = {}
        """For each window of layers (0: none): operations for a token that sees one, bytes of one read and written."""
        model, plan = resolved.stage_model, resolved.cache_plan
        page_bytes = resolved.cache.page_bytes // resolved.num_devices
        for layer, share in zip(model.layers, plan.shares, strict=True):
            if layer.recurrence is None:
                each = page_bytes / resolved.page_size / max(plan.depth, 1) / share
                for look in looks_of(model, layer.attention, resolved.num_devices):
                    sums = self._windows.setdefault(look.window, [0.0, 0.0, 0.0])
                    sums[0] += look.flops
                    sums[1] += each * look.part
                    sums[2] += each * look.part if layer.attention.source is None else 0.0

    def of(self, first: npt.NDArray[np.int64], new: npt.NDArray[np.int64], num_logits: int, shards: int) -> Amounts:
        tokens = int(new.sum())
        flops = self._per_token * tokens + self._per_logits * num_logits
        states = self._state_bytes * len(first)
        read, written = float(states), float(states)
        for window, (per_pair, per_read, per_written) in self._windows.items():
            flops += per_pair * _seen(first, new, window)
            end = first + new
            read += per_read * int((np.minimum(end, window + new - 1) if window else end).sum())
            written += per_written * tokens
        return flops / shards, read / shards + self._read_weights(-(-tokens // shards)), written / shards

    def _read_weights(self, tokens: int) -> float:
        """Bytes of weights that so many tokens need: of experts, those that are likely to be chosen."""
        if tokens not in self._weights_read:
            self._weights_read[tokens] = matrix_work(self._resolved, self._weight_bytes, tokens, 0).bytes
        return self._weights_read[tokens]


def _seen(first: npt.NDArray[np.int64], new: npt.NDArray[np.int64], window: int) -> int:
    """How many tokens all new ones see together, themselves included."""
    end = first + new
    full = np.maximum(np.minimum(end, window) - first, 0) if window else new
    growing = full * (2 * first + full + 1) // 2
    return int((growing + (new - full) * window).sum())

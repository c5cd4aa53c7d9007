"""`jaxllm.engine.control.EngineControl` of engines in other processes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxllm.config.progress import Progress, silent
from jaxllm.engine.control import PauseMode
from jaxllm.serving.ipc.messages import Call, CallResult, EngineMethod, UpdateWeights, Weight

Send = Callable[[Callable[[int], Call | UpdateWeights]], list[CallResult]]
"""Sends every engine a message, made from its number; what each of them answers."""


def called(method: EngineMethod, **arguments: Any) -> Callable[[int], Call]:
    """The maker of the message that calls a method."""
    return lambda number: Call(number, method, arguments)


def weights_message(tensors: Sequence[tuple[str, Any]]) -> Callable[[int], UpdateWeights]:
    """The maker of the message that brings tensors, arrays of NumPy or JAX."""
    weights = [Weight.of(name, np.asarray(array)) for name, array in tensors]
    return lambda number: UpdateWeights(number, weights)


class BackgroundControl:
    """Asks every engine; methods are those of `EngineControl`."""

    def __init__(self, send: Send, send_first: Send) -> None:
        """`send_first` asks the first engine alone."""
        self._send, self._send_first = send, send_first

    def sleep(self, level: int = 1, mode: PauseMode = "abort", *, again: bool = False) -> bool:
        """See `EngineControl.sleep`."""
        return all(self._call("sleep", level=level, mode=mode, again=again))

    def wake_up(self, tags: Sequence[str] | None = None, progress: Progress = silent) -> None:
        """See `EngineControl.wake_up`."""
        del progress
        self._call("wake_up", tags=None if tags is None else list(tags))

    def is_sleeping(self) -> bool:
        """See `EngineControl.is_sleeping`."""
        return any(self._call("is_sleeping"))

    def start_weight_update(self) -> None:
        """See `EngineControl.start_weight_update`."""
        self._call("start_weight_update")

    def check_weights(self, tensors: Sequence[tuple[str, Any]]) -> None:
        """Nothing: engines check what comes."""

    def update_weights(self, tensors: Sequence[tuple[str, Any]]) -> None:
        """See `EngineControl.update_weights`."""
        self._send(weights_message(tensors))

    def abort_weight_update(self, reason: str) -> None:
        """See `EngineControl.abort_weight_update`."""
        self._call("abort_weight_update", reason=reason)

    def finish_weight_update(self) -> int:
        """See `EngineControl.finish_weight_update`."""
        return _version(self._call("finish_weight_update"))

    def update_weights_from(self, folder: str | None = None, progress: Progress = silent) -> int:
        """See `EngineControl.update_weights_from`."""
        del progress
        return _version(self._call("update_weights_from", folder=folder))

    def save_sharded_state(self, path: str, pattern: str | None = None, max_size: int | None = None) -> None:
        """See `EngineControl.save_sharded_state`; all engines have the same weights."""
        self._send_first(called("save_sharded_state", path=path, pattern=pattern, max_size=max_size))

    def add_lora(self, **arguments: Any) -> bool:
        """See `EngineControl.add_lora`."""
        return all(self._call("add_lora", **arguments))

    def remove_lora(self, lora_name: str) -> bool:
        """See `EngineControl.remove_lora`."""
        return any(self._call("remove_lora", lora_name=lora_name))

    def pin_lora(self, lora_name: str) -> bool:
        """See `EngineControl.pin_lora`."""
        return all(self._call("pin_lora", lora_name=lora_name))

    def _call(self, method: EngineMethod, **arguments: Any) -> list[CallResult]:
        return self._send(called(method, **arguments))


def _version(results: Sequence[CallResult]) -> int:
    """The weights version that all engines have reached."""
    return min(each for each in results if isinstance(each, int))

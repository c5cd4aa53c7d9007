"""Sleep and other weights for the engine of an `LLM`."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from os import PathLike
from typing import Any, get_args

from jaxllm.engine.control import PauseMode
from jaxllm.errors import EngineError, RequestError, quoted
from jaxllm.requests.lora_request import LoRARequest

Tensors = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""Arrays of NumPy or JAX by their names in the checkpoint."""
NewWeights = str | PathLike[str] | Tensors
"""A folder with a checkpoint, or tensors."""


_POLL_SECONDS = 0.01
"""Between two questions whether an adapter has been read."""


def control_of(engine: Any) -> Any:
    """An engine's `EngineControl`, or what stands for that of others. Raises `RequestError` where there is none."""
    if engine.info.pooling is not None:
        raise RequestError("a pooling model cannot sleep or update its weights; create another LLM")
    return engine.control


def adapters_of(engine: Any) -> Any:
    """What reads and forgets adapters of any kind of engine."""
    return engine.control


def check_runs(engine: Any) -> None:
    """Raise `EngineError` for an engine that computes nothing: a caller would wait for it for ever."""
    if why := halted(engine):
        raise EngineError(why)


def halted(engine: Any) -> str:
    """Why an engine computes nothing; empty where that is not so."""
    state = getattr(engine, "state", None)
    return "" if state is None else str(state().halted)


def sleep(control: Any, level: int, mode: PauseMode, step: Callable[[], None]) -> None:
    """Let an engine sleep; `step` lets requests run on. Raises `RequestError`."""
    if mode not in get_args(PauseMode):
        raise RequestError(f"mode={quoted(mode)}: choose one of {', '.join(get_args(PauseMode))}", "mode")
    again = False
    while not control.sleep(level, mode, again=again):
        again = True
        step()


def add_lora(control: Any, lora: LoRARequest) -> None:
    """Have an adapter read, and wait for it. Raises `RequestError`."""
    arguments: dict[str, Any] = {
        "lora_name": lora.lora_name,
        "lora_path": lora.lora_path,
        "lora_int_id": lora.lora_int_id,
        "load_inplace": lora.load_inplace,
    }
    again = False
    while not control.add_lora(**arguments, again=again):
        again = True
        time.sleep(_POLL_SECONDS)


def update(control: Any, weights: NewWeights) -> int:
    """Replace weights, one tensor at a time; how often that was done so far. Raises `RequestError`.

    All names, shapes and types are checked before the first is replaced.
    """
    if isinstance(weights, (str, PathLike)):
        return int(control.update_weights_from(str(weights)))
    control.start_weight_update()
    try:
        if isinstance(weights, Mapping):
            control.check_weights(list(weights.items()))
        for tensor in weights.items() if isinstance(weights, Mapping) else weights:
            control.update_weights([checked_tensor(tensor)])
        return int(control.finish_weight_update())
    except BaseException as error:
        # Engines that have not failed themselves, if this is the trainer's error or another engine's, wait for more.
        with suppress(EngineError):
            control.abort_weight_update(str(error) or type(error).__name__)
        raise


def checked_tensor(tensor: Any) -> tuple[str, Any]:
    """A name and an array. Raises `RequestError` for anything else."""
    if not isinstance(tensor, tuple) or len(tensor) != 2 or not isinstance(tensor[0], str):
        raise RequestError(f"weights: expected (name, array), got {type(tensor).__name__}", "weights")
    return tensor[0], tensor[1]

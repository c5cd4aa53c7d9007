"""The target of `LLM.collective_rpc`: vLLM's worker. There is one, in this process."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxllm.errors import ConfigError, EngineError, RequestError

if TYPE_CHECKING:
    from jaxllm.engine.engine import Engine


class Worker:
    """The engine, and the methods of an extension. `rank` and `local_rank` are 0: one process has all devices."""

    rank = 0
    local_rank = 0

    def __init__(self, engine: "Engine") -> None:
        """`engine` is that of token ids."""
        self.engine = engine


def find_extension(path: str) -> type | None:
    """The class at `package.module.Class`; None for an empty path. Raises `ConfigError`."""
    if not path:
        return None
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"worker_extension_cls={path!r}: {error}; give package.module.Class") from error
    if not isinstance(found, type):
        raise ConfigError(f"worker_extension_cls={path!r}: not a class")
    clash = [each for each in vars(found) if not each.startswith("__") and hasattr(Worker, each)]
    if clash:
        raise ConfigError(f"worker_extension_cls={path!r}: the worker already has {clash[0]!r}; choose another name")
    return found


def worker_of(engine: object, extension: type | None) -> Worker:
    """A worker of this engine. Raises `EngineError` for one in another process."""
    # It loads JAX, which is here already unless the engine is in another process.
    from jaxllm.engine.engine import Engine

    if not isinstance(engine, Engine):
        raise EngineError("collective_rpc: this engine is in another process; omit background_engine")
    kind = Worker if extension is None else type("ExtendedWorker", (Worker, extension), {})
    return kind(engine)


def check_new_config(overrides: Mapping[str, Any]) -> None:
    """What vLLM's `update_config` may say: a load format, as "reload_weights" always reads the checkpoint.

    Raises `RequestError` for all else: what an engine is compiled for does not change.
    """
    for section, values in overrides.items():
        if section != "load_config" or not isinstance(values, Mapping) or values.keys() - {"load_format"}:
            raise RequestError(
                f"update_config: {section}={values!r:.80}: cannot be changed; create another LLM", "overrides"
            )
        if values.get("load_format", "auto") not in ("auto", "safetensors", "hf"):
            raise RequestError(
                f"update_config: load_format={values['load_format']!r}: only auto is supported", "overrides"
            )


def call(worker: Worker, method: str | Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a method of this name, or a function of the worker. Raises `RequestError` for an unknown name."""
    if callable(method):
        return method(worker, *args, **kwargs)
    found = getattr(worker, method, None)
    if not callable(found):
        raise RequestError(f"method={method!r}: the worker has no such method; see worker_extension_cls", "method")
    return found(*args, **kwargs)

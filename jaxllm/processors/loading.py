"""Finds the classes of logits processors that options name."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from jaxllm.config.processor_names import ClassName
from jaxllm.errors import ConfigError
from jaxllm.processors.interface import JaxLogitsProcessor

GROUPS = ("jaxllm.logits_processors", "vllm.logits_processors")
"""Groups of entry points whose names may be given."""

_METHODS = ("apply", "update_state", "is_argmax_invariant")


def load_classes(names: Iterable[str]) -> tuple[type, ...]:
    """The classes, in this order. Raises `ConfigError`."""
    return tuple(_checked(name, _found(name)) for name in names)


def label(kind: type) -> str:
    """The name of a class in errors and logs."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _found(name: str) -> Any:
    if isinstance(name, ClassName):
        return name.found
    module, separator, path = name.partition(":")
    try:
        if not separator:
            return _entry_point(name)
        found: Any = import_module(module)
        for each in path.split("."):
            found = getattr(found, each)
    except ConfigError:
        raise
    except Exception as error:  # The module is the operator's: whatever it raises.
        hint = _hint(module, path)
        raise ConfigError(f"logits_processors={name!r}: {type(error).__name__}: {error}{hint}") from error
    return found


def _hint(module: str, path: str) -> str:
    if module == "__main__" or "<locals>" in path:
        return "; engines in separate processes need a class of an importable module"
    return ""


def _entry_point(name: str) -> Any:
    # Only here: most engines have none, and reading what is installed takes a while.
    from importlib.metadata import entry_points

    for group in GROUPS:
        for each in entry_points(group=group, name=name):
            return each.load()
    known = sorted({each.name for group in GROUPS for each in entry_points(group=group)})
    installed = f"installed: {', '.join(known)}" if known else "none is installed"
    raise ConfigError(
        f"logits_processors={name!r}: expected package.module:Class, or the name of an entry point of the group "
        f"{GROUPS[0]} ({installed})"
    )


def _checked(name: str, found: Any) -> type:
    if not isinstance(found, type):
        raise ConfigError(f"logits_processors={str(name)!r}: not a class")
    if issubclass(found, JaxLogitsProcessor):
        if found.dtype not in ("float32", "int32"):
            raise ConfigError(f"logits_processors={str(name)!r}: dtype={found.dtype!r} must be 'float32' or 'int32'")
        shape: Any = found.shape
        if not isinstance(shape, tuple) or any(type(size) is not int or size < 0 for size in shape):
            raise ConfigError(
                f"logits_processors={str(name)!r}: shape={shape!r} must be a tuple of integers of at least 0"
            )
        return found
    lacking = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if lacking:
        raise ConfigError(
            f"logits_processors={str(name)!r}: lacks {', '.join(lacking)}; see jaxllm.v1.sample.logits_processor"
        )
    return found

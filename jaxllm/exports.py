"""Modules whose names are imported when they are first used (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exported(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module: finds each name in the module that `names` gives for it."""

    def find(name: str) -> Any:
        home = names.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return find

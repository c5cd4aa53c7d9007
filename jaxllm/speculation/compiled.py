"""Compiling loops of the host that a step cannot wait for in Python."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The same function as machine code, which is kept on disk for the next start if there is a place for it."""
    try:
        made: Any = njit(error_model="numpy", cache=True)(function)
    except RuntimeError:
        # No folder can be written.
        made = njit(error_model="numpy")(function)
    return made

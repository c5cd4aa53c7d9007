"""Compiling loops of the host that a step cannot wait for in Python."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The same function as machine code, made at its first call.

    Numba could keep it on disk, but reads such files by unpickling them.
    """
    made: Any = njit(error_model="numpy")(function)
    return made

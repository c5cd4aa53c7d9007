"""Short tracebacks for mistakes of the caller: their own line and the message, without what lies in between.

Such an error says itself what is wrong; where jaxllm noticed it helps nobody but those who work on jaxllm. They set
JAXLLM_FULL_TRACEBACKS=1.
"""

import functools
import inspect
import linecache
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

_PACKAGE = str(Path(__file__).parent)
_SOURCES = tuple(f"{folder}{os.sep}" for folder in {_PACKAGE, str(Path(_PACKAGE).resolve())})


def are_full() -> bool:
    """Whether the person wants to see everything."""
    return os.environ.get("JAXLLM_FULL_TRACEBACKS", "") not in ("", "0")


def without_internals(error: Exception) -> Exception:
    """The error without its traceback and its causes, to be raised from the method that was called."""
    error.__cause__, error.__suppress_context__ = None, True
    return error.with_traceback(None)


def short_for(kinds: tuple[type[Exception], ...]) -> Callable[[Class], Class]:
    """A class decorator: errors of these kinds leave the public methods of the class without internal frames."""

    def decorate(cls: Class) -> Class:
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
                setattr(cls, name, _shortened(value, kinds))
        return cls

    return decorate


def _shortened(function: Callable[..., Any], kinds: tuple[type[Exception], ...]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except kinds as error:
            if are_full():
                raise
            found = without_internals(error)
        raise found

    return call


def callers_line(trace: TracebackType | None) -> str | None:
    """The line that called jaxllm, but not of what runs notebooks: `line 3: llm.generate("")`."""
    found = None
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(_SOURCES):
            break
        if "IPython" not in name:
            text = linecache.getline(name, trace.tb_lineno).strip()
            found = f"line {trace.tb_lineno}: {text}" if text else None
        trace = trace.tb_next
    return found

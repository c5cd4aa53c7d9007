"""The errors a caller can meet. Each says what was given, what is allowed, and what to do about it."""

import copy
import functools
import inspect
import linecache
import os
import reprlib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

_PACKAGE = str(Path(__file__).parent)
_SOURCES = tuple(f"{folder}{os.sep}" for folder in {_PACKAGE, str(Path(_PACKAGE).resolve())})


class JaxLLMError(Exception):
    """Base of every error raised on purpose by jaxllm."""

    @property
    def _render_traceback_(self) -> Callable[[], list[str]]:
        """Traceback that IPython shows: in a notebook, only the message and the caller's line.

        Raises `AttributeError`, as if it were not there, where full tracebacks are wanted.
        """
        if full_tracebacks():
            raise AttributeError("_render_traceback_")
        return self._short_traceback

    def _short_traceback(self) -> list[str]:
        line = callers_line(self.__traceback__)
        return [f"{type(self).__name__}: {self}", *([f"  {line}"] if line else [])]


Error = TypeVar("Error", bound=JaxLLMError)


class ConfigError(JaxLLMError, ValueError):
    """An option, a checkpoint or a file given at start-up is wrong."""


class RequestError(JaxLLMError, ValueError):
    """One request is wrong; the engine and all other requests go on.

    `parameter` names the offending field (`temperature`, `prompt`, ...), where there is one.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class RequestFaultError(RequestError):
    """Host code has failed for this request, which is not to blame; all others go on.

    That is the operator's own code, such as a logits processor, or an internal error of the engine. `results` has what
    came of the others of the same call of `LLM`, in their order, and None in place of what has failed.
    """

    results: list[Any] | None = None


def fault_message(request_id: str) -> str:
    """Message for a request for which the engine's own code has failed."""
    return f"internal error; the server's log has the details of request {request_id}"


class PromptTooLongError(RequestError):
    """The prompt leaves no room for an answer in the model's context."""


class CapacityError(JaxLLMError):
    """The request does not fit the memory or the limits of this engine."""


class QueueFullError(CapacityError):
    """Too many requests wait already; `retry_after` seconds are a good time to wait before the next try."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTimeoutError(CapacityError):
    """The request was not answered within its time; what was computed of it is lost."""


class ScalingTimeoutError(CapacityError):
    """Engines to be stopped still had requests after the timeout; nothing has changed."""


class ScalingBusyError(CapacityError):
    """The number of engines is being changed already."""


class QuotaError(JaxLLMError, RuntimeError):
    """The owner of a request has exhausted its quota; enough is available again in `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StorageError(CapacityError):
    """An owner's storage is full: waiting does not help, deleting does."""


class EngineError(JaxLLMError, RuntimeError):
    """The engine itself failed; requests in flight are lost.

    `retry_after` seconds are a good time to wait before the next try, where another engine is being started.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def fresh(error: Error) -> Error:
    """An error like this one, to be raised in its place where many requests get the same.

    An error's traceback grows each time it is raised, and its frames keep all that the requests had.
    """
    return copy.copy(error)


MOST_QUOTED = 200
"""Characters of a value that a message repeats: its sender knows the rest."""


class _Brief(reprlib.Repr):
    """`repr` of little more than is shown, however large the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = MOST_QUOTED
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 20

    def repr_str(self, x: str, level: int) -> str:
        """The beginning of a text, not its two ends."""
        return repr(x[: MOST_QUOTED + 1])

    def repr_int(self, x: int, level: int) -> str:
        """A number; Python refuses to write one of thousands of digits."""
        return repr(x) if x.bit_length() < 4 * MOST_QUOTED else f"a number of {x.bit_length()} bits"


_BRIEF = _Brief()


def quoted(value: object) -> str:
    """A value as it was given, for a message: its `repr`, of at most `MOST_QUOTED` characters."""
    return shortened(_BRIEF.repr(value))


def shortened(text: object) -> str:
    """A text that may repeat what a client has sent, such as another library's message, of `MOST_QUOTED` characters."""
    shown = str(text)
    return shown if len(shown) <= MOST_QUOTED else f"{shown[: MOST_QUOTED - 3]}..."


_LONGEST_NAME = 100
"""Characters of a name that is compared with others; what is longer is no misspelling."""


def nearest(name: str, known: Iterable[str], *, alike: float = 0.6) -> str:
    """A hint for an error message: `"; did you mean 'x'?"`, or an empty string when nothing is `alike` (1: equal)."""
    if len(name) > _LONGEST_NAME:
        return ""
    close = get_close_matches(name, list(known), n=3, cutoff=alike)
    if not close:
        return ""
    return f"; did you mean {' or '.join(repr(match) for match in close)}?"


def full_tracebacks() -> bool:
    """Whether the caller wants to see every frame: JAXLLM_FULL_TRACEBACKS=1, for those who work on jaxllm."""
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
            if full_tracebacks():
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

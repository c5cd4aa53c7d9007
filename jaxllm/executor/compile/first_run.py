"""The first run of an executable, before there are requests: what hangs, does not fit or is rejected shows here."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import jax
from jax.errors import JaxRuntimeError

from jaxllm.errors import CapacityError, EngineError
from jaxllm.executor.backend import growth_hint
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.compiler import is_out_of_memory
from jaxllm.executor.compile.executables import Executables

T = TypeVar("T")

LONGEST_SECONDS = 300.0
"""A step that takes longer hangs: the largest steps take seconds, and so does connecting the devices of a mesh."""
_WITHOUT_ATTENTION = "--attention-backend xla avoids jaxllm's own attention kernels"
"""The hint where it may be any kernel."""


def run_at_start(platform: str, made: Sequence[Bucket]) -> Sequence[Bucket]:
    """The steps to run before there are requests, of those that are `made`.

    On CPU the smallest: its memory is the machine's, and what is padded takes as long as what is not.
    """
    return made[:1] if platform == "cpu" else made


def is_watched() -> bool:
    """Whether what hangs is looked for: on accelerators.

    A CPU has no driver to hang, and a thread that allocates keeps memory: 6 MiB for each engine.
    """
    return jax.default_backend() != "cpu"


def first_run(
    executables: Executables,
    what: str,
    run: Callable[[], T],
    renew: Callable[[], None] = lambda: None,
) -> T:
    """The result of `run`, which runs an executable and waits for it. `what` names it, as in "the first step of ...".

    If the runtime rejects executables that an earlier start has cached, they are compiled again. `renew` then makes
    again what a failed run may have taken with it, and `run` is called once more.

    Raises:
        CapacityError: the device's memory does not suffice.
        EngineError: it hangs or fails.
    """
    try:
        return watched(what, run, LONGEST_SECONDS) if is_watched() else run()
    except (JaxRuntimeError, TypeError, ValueError) as error:
        if isinstance(error, JaxRuntimeError) and is_out_of_memory(error):
            raise CapacityError(
                f"the device ran out of memory in {what}: {_first_line(error)}; lower gpu_memory_utilization, "
                f"kv_cache_memory_bytes or max_num_batched_tokens{growth_hint()}"
            ) from error
        if not executables.make_again(f"{what} failed: {_first_line(error)}"):
            raise EngineError(f"{what} failed: {_first_line(error)}; run `jaxllm doctor` to find the cause") from error
    renew()
    return first_run(executables, what, run, renew)


def watched(what: str, run: Callable[[], T], longest_seconds: float, hint: str = _WITHOUT_ATTENTION) -> T:
    """The result of `run`, called in a thread that nobody waits for longer.

    Raises `EngineError`, naming `what`, with a hint how to go without what hangs.
    """
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(run())
        except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
            future.set_exception(error)

    # A daemon: what hangs in the runtime cannot be interrupted, and the interpreter must end nevertheless.
    threading.Thread(target=call, name="first run", daemon=True).start()
    try:
        return future.result(longest_seconds)
    except TimeoutError:
        raise EngineError(
            f"{what} did not finish within {longest_seconds:g} s: the device or one of its kernels hangs; run `jaxllm "
            f"doctor` to find which; {hint}"
        ) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

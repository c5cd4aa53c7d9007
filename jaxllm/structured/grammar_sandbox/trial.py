"""One grammar in a process of its own: compiled, and followed for some tokens, within a budget."""

import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np

from jaxllm.errors import RequestError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import Backend, Grammar, mask_words
from jaxllm.structured.complexity.check import check_complexity
from jaxllm.structured.grammar_sandbox.messages import Budget, Verdict

WALK_TOKENS: Final = 32
"""So far an output is followed."""

WALK_SECONDS: Final = 0.2
"""CPU time of the walk."""

_STATM: Final = Path("/proc/self/statm")

Result = TypeVar("Result")


class _NoThreadError(Exception):
    """The system gives no thread."""


def limit(budget: Budget) -> None:
    """Have this process end by a signal when it uses more than the budget; `meaning` says what the signal tells."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _STATM.exists():
        data = int(_STATM.read_text().split()[5]) * resource.getpagesize()
        most = data + budget.memory_bytes + budget.compile_stack_bytes + budget.mask_stack_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, budget.processor_seconds)
    signal.setitimer(signal.ITIMER_REAL, budget.seconds)


def meaning(status: int, budget: Budget) -> Verdict:
    """What it says of a grammar that its process ended with this status, without a word."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGPROF:
        return _refused(f"compiling it takes more than {budget.processor_seconds:g} s of CPU time")
    if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL):
        return _refused("it is nested too deeply through its references or rules")
    if number == signal.SIGABRT:
        return _refused(f"compiling it takes more than {budget.memory_bytes >> 20} MiB of memory")
    if number == signal.SIGALRM:
        return _refused(f"compiling it took more than {budget.seconds:g} s", lasting=False)
    if number:
        return untried(f"the process that checked it was killed ({signal.Signals(number).name})")
    return _refused("the process that checked it was killed", lasting=False)


def untried(why: str) -> Verdict:
    """Nothing is known of a grammar, for a reason that is none of its own."""
    return Verdict(error=f"the grammar could not be checked: {why}", lasting=False, untried=True)


def _refused(why: str, *, lasting: bool = True) -> Verdict:
    return Verdict(error=f"the grammar is too complex: {why}", lasting=lasting)


def attempt(backend: Backend, vocab_size: int, data: bytes, budget: Budget) -> Verdict:
    """Compile a form as an engine would, and follow it for some tokens; what is known of it then."""
    form = msgspec.msgpack.decode(data, type=StructuredOutputsParams)
    before = _resident()
    try:
        check_complexity(form)
        grammar = _run_on_stack(budget.compile_stack_bytes, lambda: backend.compile(form))
        slowest, forcing = _run_on_stack(budget.mask_stack_bytes, lambda: _walk(backend, grammar, vocab_size))
    except RequestError as error:
        return Verdict(error=str(error), parameter=error.parameter)
    except MemoryError:
        return meaning(signal.SIGABRT, budget)
    except _NoThreadError as error:
        return untried(str(error))
    if slowest > budget.mask_seconds:
        return _refused(
            f"computing the allowed tokens takes more than {1e3 * budget.mask_seconds:.0f} ms for one token"
        )
    if forcing > budget.forced_seconds:
        return _refused("a forced string is too long: const, enum, choice and patterns must be short")
    return Verdict(size=max(0, _resident() - before))


def _run_on_stack(size: int, work: Callable[[], Result]) -> Result:
    """The result of `work` on a thread with so large a stack, in bytes."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  (it is raised again, where it belongs)
            errors.append(error)

    threading.stack_size(size)
    thread = threading.Thread(target=run)
    try:
        thread.start()
    except RuntimeError as error:
        raise _NoThreadError(str(error)) from None
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _walk(backend: Backend, grammar: Grammar, vocab_size: int) -> tuple[float, float]:
    """Follow one output, the same for the same grammar.

    Returns the most seconds of processor time for one token, and to find what must follow it.

    What llguidance rejects on the way, it may reject of an output that goes there: no reason to reject all.
    """
    chosen = random.Random(0)
    matcher = grammar.matcher()
    masks = np.zeros((1, mask_words(vocab_size)), np.int32)
    slowest, forcing, began = 0.0, 0.0, time.thread_time()
    start = began
    for _ in range(WALK_TOKENS):
        start = time.thread_time()
        if start - began > WALK_SECONDS or backend.fill([(matcher, 0)], masks)[0] is not None:
            break
        allowed = np.flatnonzero(np.unpackbits(masks.view(np.uint8)[0], bitorder="little"))
        if not len(allowed) or matcher.take([int(chosen.choice(allowed))]) is not None or matcher.finished:
            break
        asked = time.thread_time()
        forced = matcher.forced()
        forcing = max(forcing, time.thread_time() - asked)
        if forced and matcher.take(forced) is not None:
            break
        slowest = max(slowest, time.thread_time() - start)
    return max(slowest, time.thread_time() - start), forcing


def _resident() -> int:
    """Most bytes of memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

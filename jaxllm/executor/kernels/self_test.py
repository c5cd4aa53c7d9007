"""Whether the kernels that `auto` takes are right on this machine, before an engine relies on them.

Kernels for accelerators are compiled by young compilers, for chips that differ. A wrong one gives wrong text and no
error, so each computes a few cases first, compared with a reference. A pass is cached: a start with the same chip,
libraries and shapes need not test again.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax

from jaxllm.config.engine_info import Operation
from jaxllm.executor.compile.executables import use_compilation_cache
from jaxllm.executor.compile.first_run import LONGEST_SECONDS, watched
from jaxllm.executor.compile.identity import software
from jaxllm.executor.kernels.operation import option_of
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.artifact_cache import ArtifactCache
from jaxllm.pallas_kernels.measured import measured_digest

Case = TypeVar("Case")

logger = logging.getLogger(__name__)

RESULTS = "self_tests"
"""Folder of the passes, next to that of the executables."""

_LARGEST = 1 << 20
"""Bytes of that folder."""


@dataclass(frozen=True)
class SelfTest(Generic[Case]):
    """How the kernels of an operation are tested."""

    operation: Operation
    title: str
    """The operation's name in messages."""
    kernels: tuple[str, ...]
    """The implementations that are tested."""
    cases: Callable[[ResolvedConfig], Sequence[Case]]
    """The cases to compute. Their `repr` is part of the key of a cached pass. None if the model has nothing that the
    kernel takes: then 'xla' serves, without a warning."""
    find_problem: Callable[[Case, ResolvedConfig, Callable[..., Any]], str | None]
    """The problem of one case in a few words, None if there is none; exceptions of the kernel count as problems."""
    run: Callable[..., Any]
    """Computes a case: the third argument of `find_problem`."""
    alternatives: Callable[[ResolvedConfig], Iterator[ResolvedConfig]] = lambda resolved: iter(())
    """Configurations to test where a kernel is wrong, before falling back to 'xla'."""
    advice: str = ""
    """Appended to the warning."""


def verify_kernel(test: SelfTest[Case], resolved: ResolvedConfig) -> ResolvedConfig:
    """`resolved`, with another implementation of the operation where `auto` chose a kernel that is not right here.

    Raises `EngineError` for a kernel that hangs: the device is of no use to anything else.
    """
    operation, name = test.operation, resolved.backend(test.operation)
    if getattr(resolved.config.compile, option_of(operation)) != "auto" or name not in test.kernels:
        return resolved
    if not test.cases(resolved):
        return resolved.with_kernel(operation, "xla")
    problem = _cached_problem(test, resolved)
    if problem is None:
        return resolved
    found = resolved.with_kernel(operation, name, f"{name}: {problem}")
    right = (each for each in test.alternatives(found) if _cached_problem(test, each) is None)
    after = next(right, None) or found.with_kernel(operation, "xla", f"{name}: {problem}")
    serving = after.backend(operation)
    logger.warning(
        "%s %r failed its self-test on this %s: %s. Serving with %s, which is slower%s",
        test.title,
        name,
        resolved.device_kind,
        problem,
        "its checks enabled" if serving == name else repr(serving),
        test.advice,
    )
    return after


def _cached_problem(test: SelfTest[Case], resolved: ResolvedConfig) -> str | None:
    """The problem that the test finds; None where an earlier start with the same key found nothing.

    It is traced with the engine's precision of products.
    """
    cases, name, precision = test.cases(resolved), resolved.backend(test.operation), resolved.matmul_precision
    machine = [resolved.device_kind, software(resolved.platform), measured_digest()]
    key = [test.operation, name, resolved.dtype, precision, machine, [repr(case) for case in cases]]
    file = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    folder = use_compilation_cache(resolved.config.compile.compilation_cache_dir)
    cache = None if folder is None else ArtifactCache(folder.parent / RESULTS, _LARGEST)
    if cache is not None and cache.get(file) is not None:
        return None
    kernel = f"{test.title} {name!r}"
    logger.info("testing %s on this %s", kernel, resolved.device_kind)

    def compute() -> str | None:
        # Here: the precision holds for one thread.
        with jax.default_matmul_precision(precision) if precision else nullcontext():
            return next(filter(None, (_problem(test, case, resolved) for case in cases)), None)

    hint = f"--{option_of(test.operation).replace('_', '-')} xla avoids this kernel"
    problem = watched(f"the self-test of {kernel}", compute, LONGEST_SECONDS, hint)
    if cache is not None and problem is None:
        # A failure may pass: a device that was full, a driver that was updated.
        cache.put(file, b"right")
    return problem


def _problem(test: SelfTest[Case], case: Case, resolved: ResolvedConfig) -> str | None:
    """The problem of one case; an exception counts, in one line."""
    try:
        return test.find_problem(case, resolved, test.run)
    except Exception as error:  # noqa: BLE001  Whatever compilers and drivers raise: the engine can do without.
        lines = str(error).splitlines()
        return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"

"""Whether the kernel that `auto` takes is right on this machine, before an engine relies on it.

Kernels for accelerators are compiled by young compilers, for chips that differ. A wrong one gives wrong text and no
error, so it computes one batch with the model's heads first, beside the reference. That it was right is kept: a start
with the same chip, libraries and shapes need not test it again.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from jaxllm.pallas_kernels.artifact_cache import ArtifactCache
from jaxllm.pallas_kernels.paged_attention.check import Implementation, Result, compare, run_case
from jaxllm.pallas_kernels.paged_attention.inputs import Case
from jaxllm.runtime.programs.executables import use_compilation_cache
from jaxllm.runtime.programs.first_run import LONGEST_SECONDS, watched
from jaxllm.runtime.programs.identity import software
from jaxllm.runtime.resolved import ResolvedConfig

logger = logging.getLogger(__name__)

RESULTS = "self_tests"
"""Folder of what was found, beside that of the executables."""

_LARGEST = 1 << 20
"""Bytes of that folder."""

_ROWS = ((1, 0), (1, 15), (1, 300), (40, 0), (70, 130))
"""New and computed tokens: decodes of one page and of several tiles, a prompt, and a chunk of a longer one."""


def with_tested_attention(resolved: ResolvedConfig, run: Callable[..., Result] = run_case) -> ResolvedConfig:
    """`resolved`, changed where `auto` chose an accelerator's kernel that is not right here.

    Then the kernel for TPUs serves with its checks on, if it is right with them, else XLA's attention. `run` is what
    runs a case: for tests. Raises `EngineError` for a kernel that hangs: the device is of no use to anything else.
    """
    if resolved.config.compile.attention_backend != "auto" or resolved.attention not in ("tpu", "gpu"):
        return resolved
    problem = _cached_problem(resolved, run)
    if problem is None:
        return resolved
    found = replace(resolved, attention_problem=f"{resolved.attention}: {problem}")
    checked = replace(found, attention_checks=True)
    with_checks = (
        resolved.attention == "tpu" and not resolved.attention_checks and _cached_problem(checked, run) is None
    )
    logger.warning(
        "paged attention %r failed its self-test on this %s: %s. Serving with %s, which is slower; "
        "`jaxllm doctor --stage attention` says more",
        resolved.attention,
        resolved.device_kind,
        problem,
        "its checks on" if with_checks else "'xla'",
    )
    return checked if with_checks else replace(found, attention="xla")


def _cached_problem(resolved: ResolvedConfig, run: Callable[..., Result]) -> str | None:
    """What the self-test finds, unless an earlier start found nothing."""
    cases, name = list(cases_of(resolved)), resolved.attention
    options = {"checks": True} if resolved.attention_checks else {}
    key = [name, options, resolved.device_kind, software(resolved.platform), [repr(case) for case in cases]]
    file = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    folder = use_compilation_cache(resolved.config.compile.compilation_cache_dir)
    cache = None if folder is None else ArtifactCache(folder.parent / RESULTS, _LARGEST)
    if cache is not None and cache.get(file) is not None:
        return None
    logger.info("testing paged attention %r on this %s", name, resolved.device_kind)
    implementation = partial(run, name, **options)
    found = watched(
        f"the self-test of paged attention {name!r}", lambda: _first_problem(cases, implementation), LONGEST_SECONDS
    )
    if cache is not None and found is None:
        # A failure may pass: a device that was full, a driver that was updated.
        cache.put(file, b"right")
    return found


def cases_of(resolved: ResolvedConfig) -> Iterator[Case]:
    """One batch for each kind of layer, with the heads that one device has."""
    model, devices = resolved.model, resolved.num_devices
    case = Case(
        "self_test",
        _ROWS,
        num_heads=model.num_heads // devices,
        num_kv_heads=max(model.num_kv_heads // devices, 1),
        head_size=model.head_size,
        page_size=resolved.page_size,
        padding_tokens=3,
        dtype=resolved.dtype,
    )
    for is_windowed in sorted({window > 0 for window in model.windows}):
        yield replace(case, window=100 if is_windowed else None)


def _first_problem(cases: Sequence[Case], implementation: Implementation) -> str | None:
    return next(filter(None, (_problem(case, implementation) for case in cases)), None)


def _problem(case: Case, implementation: Implementation) -> str | None:
    """What is wrong with one case."""
    try:
        result = compare(case, implementation)
    except Exception as error:  # noqa: BLE001  Whatever compilers and drivers raise: the engine can do without.
        lines = str(error).splitlines()
        return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
    if result.error is None:
        return result.reason
    return f"it is off by {result.error:.1e}, where {result.limit:.0e} is allowed" if result.is_wrong else None

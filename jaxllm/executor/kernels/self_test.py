"""Whether the kernel that `auto` takes is right on this machine, before an engine relies on it.

Kernels for accelerators are compiled by young compilers, for chips that differ. A wrong one gives wrong text and no
error, so it computes one batch with the model's heads first, beside the reference. That it was right is kept: a start
with the same chip, libraries and shapes need not test it again.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from jaxllm.executor.compile.executables import use_compilation_cache
from jaxllm.executor.compile.first_run import LONGEST_SECONDS, watched
from jaxllm.executor.compile.identity import software
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.artifact_cache import ArtifactCache
from jaxllm.pallas_kernels.latent_attention import check as latent_check
from jaxllm.pallas_kernels.latent_attention.cases import Case as LatentCase
from jaxllm.pallas_kernels.measured import measured_digest
from jaxllm.pallas_kernels.paged_attention.check import Result, compare, run_case
from jaxllm.pallas_kernels.paged_attention.inputs import Case

logger = logging.getLogger(__name__)

RESULTS = "self_tests"
"""Folder of what was found, beside that of the executables."""

_LARGEST = 1 << 20
"""Bytes of that folder."""

_ROWS = ((1, 0), (1, 15), (1, 300), (40, 0), (70, 130))
"""New and computed tokens: decodes of one page and of several tiles, a prompt, and a chunk of a longer one."""


def verify_attention(resolved: ResolvedConfig, run: Callable[..., Result] | None = None) -> ResolvedConfig:
    """`resolved`, changed where `auto` chose an accelerator's kernel that is not right here.

    Then the kernel for TPUs serves with its checks on, and in place of that for Hopper the one for all GPUs, if that is
    right; else XLA's attention. `run` is what runs a case: for tests. Raises `EngineError` for a kernel that hangs: the
    device is of no use to anything else.
    """
    is_kernel = resolved.attention in ("tpu", "gpu", "triton")
    run = run or (run_case if resolved.model.latent is None else latent_check.run_case)
    if resolved.config.compile.attention_backend != "auto" or not is_kernel:
        return resolved
    problem = _cached_problem(resolved, run)
    if problem is None:
        return resolved
    found = replace(resolved, attention_problem=f"{resolved.attention}: {problem}")
    second = _second_choice(found)
    if second is not None and _cached_problem(second, run) is not None:
        second = None
    after = second or replace(found, attention="xla")
    logger.warning(
        "paged attention %r failed its self-test on this %s: %s. Serving with %s, which is slower; "
        "`jaxllm doctor --stage attention` says more",
        resolved.attention,
        resolved.device_kind,
        problem,
        "its checks on" if after.attention == resolved.attention else repr(after.attention),
    )
    return after


def _second_choice(resolved: ResolvedConfig) -> ResolvedConfig | None:
    """The kernel to try before XLA's attention, where there is one."""
    if resolved.attention == "tpu" and not resolved.attention_checks:
        return replace(resolved, attention_checks=True)
    if resolved.attention == "gpu" and resolved.model.latent is None:
        return replace(resolved, attention="triton")
    return None


def _cached_problem(resolved: ResolvedConfig, run: Callable[..., Result]) -> str | None:
    """What the self-test finds, unless an earlier start found nothing."""
    cases, name = (
        [*cases_of(resolved)] if resolved.model.latent is None else [latent_case(resolved)],
        resolved.attention,
    )
    options = {"checks": True} if resolved.attention_checks else {}
    implementation = partial(run, name, **options)
    key = [name, options, measured_digest(), [repr(case) for case in cases]]
    return unless_known(
        resolved,
        f"paged attention {name!r}",
        key,
        lambda: _first_problem(cases, implementation),
        "--attention-backend",
    )


def unless_known(
    resolved: ResolvedConfig, kernel: str, key: list[Any], test: Callable[[], str | None], option: str
) -> str | None:
    """What the `test` of a kernel finds wrong; None where an earlier start with the same `key`, in JSON, found nothing.

    It is traced with the engine's precision of products. Raises `EngineError` for a kernel that hangs: `option` is the
    one that replaces it.
    """
    precision = resolved.matmul_precision
    key = [*key, precision, resolved.device_kind, software(resolved.platform)]
    file = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    folder = use_compilation_cache(resolved.config.compile.compilation_cache_dir)
    cache = None if folder is None else ArtifactCache(folder.parent / RESULTS, _LARGEST)
    if cache is not None and cache.get(file) is not None:
        return None
    logger.info("testing %s on this %s", kernel, resolved.device_kind)

    def precise() -> str | None:
        # Here: it holds for one thread.
        with jax.default_matmul_precision(precision) if precision else nullcontext():
            return test()

    hint = f"{option} xla goes without this one"
    found = watched(f"the self-test of {kernel}", precise, LONGEST_SECONDS, hint)
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
        page_size=resolved.page_size,
        padding_tokens=3,
        dtype=resolved.dtype,
        kv_dtype=resolved.kv_dtype,
    )
    plans = [layer.attention for layer in model.attention_layers]
    for is_windowed in sorted({plan.window > 0 for plan in plans}):
        kinds = dict.fromkeys(
            (model.kv_heads_of(plan), model.head_size_of(plan)) for plan in plans if (plan.window > 0) == is_windowed
        )
        for heads, size in kinds:
            own = replace(case, num_kv_heads=max(heads // devices, 1), head_size=size)
            yield replace(own, window=100 if is_windowed else None)


def latent_case(resolved: ResolvedConfig) -> LatentCase:
    """The same of latent attention."""
    latent = resolved.model.latent
    assert latent is not None
    return LatentCase(
        "self_test",
        _ROWS,
        num_heads=resolved.model.num_heads // resolved.num_devices,
        latent_size=latent.rank,
        rope_size=latent.rope_size,
        page_size=resolved.page_size,
        padding_tokens=3,
        dtype=resolved.dtype,
    )


def _first_problem(cases: Sequence[Case | LatentCase], implementation: Callable[..., Result]) -> str | None:
    return next(filter(None, (_problem(case, implementation) for case in cases)), None)


def _problem(case: Case | LatentCase, implementation: Callable[..., Result]) -> str | None:
    """What is wrong with one case."""
    try:
        if isinstance(case, LatentCase):
            result = latent_check.compare(case, implementation)
        else:
            result = compare(case, implementation)
    except Exception as error:  # noqa: BLE001  Whatever compilers and drivers raise: the engine can do without.
        return named(error)
    if result.error is None:
        return result.reason
    return f"it is off by {result.error:.1e}, where {result.limit:.0e} is allowed" if result.is_wrong else None


def named(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"

"""The self-test of paged and latent attention, with the model's heads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jaxllm.executor.kernels.self_test import SelfTest
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.kv_shape import latent_kinds
from jaxllm.pallas_kernels.latent_attention import check as latent_check
from jaxllm.pallas_kernels.latent_attention.cases import Case as LatentCase
from jaxllm.pallas_kernels.latent_attention.cases import Inputs as LatentInputs
from jaxllm.pallas_kernels.paged_attention import check
from jaxllm.pallas_kernels.paged_attention.check import Result
from jaxllm.pallas_kernels.paged_attention.inputs import Case, Inputs

_DECODES, _CHUNKS = ((1, 0), (1, 15), (1, 300)), ((40, 0), (70, 130))
"""New and computed tokens: decodes of one page and of several tiles, a prompt, and a chunk of a longer one."""

_SPANS = ((5, 37), (140, 190))
"""Tokens of these two that see one another, where models have such."""


@dataclass(frozen=True)
class AttentionCase:
    """A batch, and whether the kernel checks bounds and semaphores."""

    batch: Case | LatentCase
    checks: bool


def attention_cases(resolved: ResolvedConfig) -> Sequence[AttentionCase]:
    """One batch for each kind of layer, with the heads that one device has."""
    batches: list[Case | LatentCase] = []
    batches += paged_cases(resolved) if resolved.model.latent is None else latent_cases(resolved)
    # Kinds of layers may have the same.
    different: dict[Case | LatentCase, None] = dict.fromkeys(batches)
    return [AttentionCase(batch, resolved.attention_checks) for batch in different]


def paged_cases(resolved: ResolvedConfig) -> Iterator[Case]:
    """Batches for layers with and without a window, and for each number and size of heads."""
    model, devices = resolved.model, resolved.num_devices
    rows, most_short = _rows(resolved)
    case = Case(
        "self_test",
        rows,
        page_size=resolved.page_size,
        padding_tokens=3,
        dtype=resolved.dtype,
        kv_dtype=resolved.kv_dtype,
        most_short=most_short,
    )
    plans = [layer.attention for layer in model.attention_layers]
    seeing = {plan.window > 0 for plan in plans if plan.sees_spans and resolved.sees_spans}
    for is_windowed in sorted({plan.window > 0 for plan in plans}):
        kinds = dict.fromkeys(
            (model.heads_of(plan), model.kv_heads_of(plan), model.head_size_of(plan))
            for plan in plans
            if (plan.window > 0) == is_windowed
        )
        for heads, kv_heads, size in kinds:
            own = replace(case, num_heads=heads // devices, num_kv_heads=max(kv_heads // devices, 1), head_size=size)
            prompts = range(len(rows) - 2, len(rows))
            spans = tuple((row, *span) for row, span in zip(prompts, _SPANS, strict=True) if is_windowed in seeing)
            yield replace(own, window=100 if is_windowed else None, spans=spans)


def latent_cases(resolved: ResolvedConfig) -> Iterator[LatentCase]:
    """Batches for latent attention of each kind."""
    model = resolved.model
    rows, most_short = _rows(resolved)
    for plan, (rank, rope, index_size) in zip(model.latents, latent_kinds(model), strict=True):
        # Kernels do not choose groups of keys.
        index = plan.index if plan.index is not None and plan.index.pool == 1 else None
        yield LatentCase(
            "self_test",
            rows,
            num_heads=model.heads_of(plan) // resolved.num_devices,
            latent_size=rank,
            rope_size=rope,
            index_heads=0 if index is None else index.heads,
            index_size=0 if index is None else index_size,
            top=0 if index is None else min(index.top, 128),
            sinks=plan.sinks,
            window=min(plan.window, 100),
            page_size=resolved.page_size,
            padding_tokens=3,
            dtype=resolved.dtype,
            most_short=most_short,
        )


def _rows(resolved: ResolvedConfig) -> tuple[tuple[tuple[int, int], ...], int]:
    """The rows of a batch, one of them with drafts if there may be such, and how many tokens these have."""
    most = 1 + resolved.max_drafts
    return (*_DECODES, *(((most, 200),) if most > 1 else ()), *_CHUNKS), most


def _run(name: str, inputs: Inputs | LatentInputs, **options: bool) -> Result:
    if isinstance(inputs, LatentInputs):
        return latent_check.run_case(name, inputs, **options)
    return check.run_case(name, inputs, **options)


def _find_problem(case: AttentionCase, resolved: ResolvedConfig, run: Callable[..., Result]) -> str | None:
    implementation = partial(run, resolved.backend("attention"), **({"checks": True} if case.checks else {}))
    if isinstance(case.batch, LatentCase):
        result = latent_check.compare(case.batch, implementation)
    else:
        result = check.compare(case.batch, implementation)
    if result.error is None:
        return result.reason
    return f"its error is {result.error:.1e}, and the limit {result.limit:.0e}" if result.is_wrong else None


def _alternatives(resolved: ResolvedConfig) -> Iterator[ResolvedConfig]:
    """The kernel for TPUs with its checks on; the one for all GPUs in place of that for Hopper."""
    name, problem = resolved.backend("attention"), resolved.kernels["attention"].problem
    if name == "tpu" and not resolved.attention_checks:
        yield replace(resolved, attention_checks=True)
    if name == "gpu" and resolved.model.latent is None:
        yield resolved.with_kernel("attention", "triton", problem)


TEST = SelfTest(
    "attention",
    title="paged attention",
    kernels=("tpu", "gpu", "triton"),
    cases=attention_cases,
    find_problem=_find_problem,
    run=_run,
    alternatives=_alternatives,
    advice="; `jaxllm doctor --stage attention` shows details",
)

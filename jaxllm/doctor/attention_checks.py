"""Stage `attention_checks`: the same cases with the checks of bounds and semaphores that kernels leave out."""

from functools import partial

from jaxllm.doctor.attention_cases import check_cases, resolve_model
from jaxllm.doctor.result import Context, Outcome
from jaxllm.pallas_kernels.paged_attention.check import run_case


def run(context: Context) -> Outcome:
    """Run them where the kernel has such checks."""
    name = resolve_model(context).attention
    if name != "tpu":
        return Outcome(f"{name} attention has no checks to turn on", status="skipped")
    return check_cases(context, partial(run_case, name, checks=True))

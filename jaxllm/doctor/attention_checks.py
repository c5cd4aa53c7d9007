"""Stage `attention_checks`: the same cases with the checks of bounds and semaphores that kernels leave out."""

from jaxllm.doctor.attention_cases import check_cases, resolve_model
from jaxllm.doctor.result import Context, Outcome


def run(context: Context) -> Outcome:
    """Run them where the kernel has such checks."""
    resolved = resolve_model(context)
    if resolved.backend("attention") != "tpu":
        return Outcome(f"{resolved.backend('attention')} attention has no checks to turn on", status="skipped")
    return check_cases(context, resolved, checks=True)

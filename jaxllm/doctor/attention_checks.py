"""Stage `attention_checks`: the same cases with the checks of bounds and semaphores that kernels leave out."""

from jaxllm.doctor.attention_cases import resolve_model
from jaxllm.doctor.result import Context, Outcome


def run(context: Context) -> Outcome:
    """Run them where the kernel has such checks."""
    name = resolve_model(context).attention
    return Outcome(f"{name} attention has no checks to turn on", status="skipped")

"""Stage `attention`: the attention that `auto` chooses here, on every case, with the model's heads."""

from jaxllm.doctor.attention_cases import check_cases
from jaxllm.doctor.result import Context, Outcome


def run(context: Context) -> Outcome:
    """Compare with the reference, as the engine would run it."""
    return check_cases(context)

"""How large a step is where options leave it open: requests at once, and tokens."""

from dataclasses import dataclass
from typing import Literal

from jaxllm.config import SchedulerOptions


@dataclass(frozen=True)
class StepSize:
    """`max_num_seqs` and `max_num_batched_tokens`."""

    requests: int
    tokens: int

    def chosen(self, options: SchedulerOptions) -> "StepSize":
        """What the options say, and this where they say nothing."""
        requests = options.max_num_seqs or self.requests
        tokens = options.max_num_batched_tokens or self.tokens
        return StepSize(
            min(requests, options.max_num_active_seqs or requests),
            min(tokens, options.max_num_scheduled_tokens or tokens),
        )


ON_CPU = StepSize(64, 512)
ON_ACCELERATORS = (StepSize(256, 8192), StepSize(128, 4096), StepSize(64, 2048))
"""The largest that fits (`jaxllm.planning.step_size`). A decode of 256 requests reads the weights once, as one of 64
does; a prompt is computed in a quarter of the steps. No larger: requests that decode wait for a step to end."""


def usual_step_sizes(platform: str, runner: Literal["generate", "pooling"]) -> tuple[StepSize, ...]:
    """What the options default to, the largest first. Pooling computes whole texts, and its scores grow with both."""
    if platform == "cpu":
        return (ON_CPU,)
    return ON_ACCELERATORS if runner == "generate" else ON_ACCELERATORS[-1:]

"""Puts together the speculation of an engine: what drafts, and what its steps cost."""

from collections.abc import Mapping

from jaxllm.config.speculation import Drafting
from jaxllm.engine.features.constrained import ConstrainedDecoding
from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.speculation import Speculation
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Runner
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.sharded import ShardedScheduler
from jaxllm.speculation.device_drafts import DeviceDrafts
from jaxllm.speculation.drafter import Drafter
from jaxllm.speculation.earlier_outputs import EarlierOutputsDrafter
from jaxllm.speculation.ngram import NgramDrafter
from jaxllm.speculation.prediction import PredictionDrafter
from jaxllm.speculation.step_costs import StepCosts


def make_speculation(
    resolved: ResolvedConfig,
    faults: Faults,
    scheduler: Scheduler | ShardedScheduler,
    runner: Runner,
    constrained: ConstrainedDecoding,
    planned_seconds: Mapping[int, float],
) -> Speculation:
    """The speculation of an engine that has some; `planned_seconds` are those of its steps, by tokens."""
    drafting = resolved.config.speculation.drafting
    assert drafting is not None
    num_slots = len(scheduler.table.requests)
    costs, drafting_costs = (
        StepCosts(
            [bucket.tokens for bucket in runner.buckets],
            computes_padding=not resolved.forward.native_matmul,
            planned=planned_seconds,
        )
        for _ in range(2)
    )
    looked_up: Drafter
    on_device = None
    if drafting.on_device:
        looked_up = on_device = DeviceDrafts(num_slots, drafting.num_tokens)
    else:
        looked_up = _text_drafter(drafting, num_slots, resolved.max_model_len)
    drafter = PredictionDrafter(looked_up)
    return Speculation(
        faults, scheduler, runner, drafter, costs, drafting_costs if drafting.on_device else None, constrained,
        max_drafts=drafting.num_tokens, most_requests=drafting.most_requests, on_device=on_device,
        metrics=resolved.config.speculation.per_request_spec_decode_metrics,
    )  # fmt: skip


def _text_drafter(drafting: Drafting, num_slots: int, max_model_len: int) -> Drafter:
    """What guesses from texts, of requests or of earlier outputs as well."""
    own_text = NgramDrafter(num_slots, max_model_len, drafting.ngram_min, drafting.ngram_max)
    if drafting.method != "suffix":
        return own_text
    return EarlierOutputsDrafter(own_text, drafting.max_cached_tokens, drafting.ngram_max, drafting.ngram_min)
